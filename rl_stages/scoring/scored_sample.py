"""A sample with its score: its training sequence, the metrics of a batch of samples, and its record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from cascade_rl.engine.core.rollouts import Outcome, Rollout
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.run.sample_record import SampleRecord

Rule = Literal["wrong_format", "code_switch"]


class Penalty(NamedTuple):
    """The reward that a rule of the stage gives an answer instead of its score. It may be outside [0, 1]."""

    rule: Rule
    reward: float


@dataclass(frozen=True)
class Elsewhere:
    """A rollout on the ranks that do not have its tokens: all but rank 0."""

    id: str
    length: int


@dataclass(frozen=True)
class Sample:
    """An answer, its score, and the advantage that all its tokens share."""

    task: Task
    rollout: Rollout
    text: str
    verdict: Verdict
    advantage: float = 0.0
    trained: bool = True
    penalty: Penalty | None = None

    @property
    def reward(self) -> float | None:
        """The reward for training; None for an infrastructure failure."""
        return self.penalty.reward if self.penalty else self.verdict.score

    @property
    def reward_parts(self) -> Mapping[str, float | None]:
        if self.penalty is None:
            return self.verdict.parts
        return {**self.verdict.parts, "score": self.verdict.score, self.penalty.rule: 1.0}

    def told(self) -> "Sample":
        """What every rank knows of it: all but its tokens and texts."""
        task, rollout = (
            replace(self.task, messages=(), metadata={}, tools=()),
            Elsewhere(self.rollout.id, self.rollout.length),
        )
        return replace(self, task=task, rollout=rollout, text="")  # type: ignore[arg-type]

    def sequence(self, temperature: float) -> TrainSequence:
        """The training sequence, with per_token "advantage" and "rollout_logprob". No loss tokens unless `trained`."""
        token_ids, kept = np.concatenate([self.rollout.prompt_ids, self.rollout.token_ids]), self.rollout.kept
        answer = np.arange(len(token_ids) - 1) >= len(self.rollout.prompt_ids) - 1  # [n - 1]
        generated = _behind_prompt(self.rollout.generated, answer) if self.rollout.generated is not None else answer
        return TrainSequence(
            token_ids=token_ids,
            loss_mask=generated & self.trained,
            temperature=temperature,
            per_token={
                "advantage": np.where(generated, np.float32(self.advantage), np.float32(0)),
                "rollout_logprob": _behind_prompt(self.rollout.logprobs, answer),
            },
            routes=self.rollout.routes,
            kept=kept and replace(kept, counts=_behind_prompt(kept.counts, answer)),
        )


def sequences_of(samples: Sequence[Sample], temperature: float) -> list[TrainSequence]:
    """The training sequences on rank 0, which has the tokens; none on the others."""
    return [sample.sequence(temperature) for sample in samples if isinstance(sample.rollout, Rollout)]


def outcomes(samples: list[Sample]) -> dict[str, float]:
    """Means over the batch. The mean reward is over the samples that have one, and is absent if none has."""
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    counts = {f"{outcome}_fraction": np.mean([s.verdict.outcome is outcome for s in samples]) for outcome in Outcome}
    return {
        **({"reward": float(np.mean(rewards))} if rewards else {}),
        "length": float(np.mean([sample.rollout.length for sample in samples])),
        **{name: float(fraction) for name, fraction in counts.items()},
    }


def record(sample: Sample, sequence: TrainSequence, train_logprobs: np.ndarray) -> SampleRecord:
    """The record of a sample, with the answer's part of `sequence` and of `train_logprobs`, float32 [n - 1]."""
    answer = slice(len(sample.rollout.prompt_ids) - 1, None)
    return _record(sample, train_logprobs[answer], sequence.loss_mask[answer])


def heldout_record(sample: Sample) -> SampleRecord:
    """The record of a sample whose tokens no trainer has scored, and from which none learns."""
    return _record(sample, None, np.zeros(len(sample.rollout.token_ids), np.bool_))


def _record(sample: Sample, train_logprobs: np.ndarray | None, loss_mask: np.ndarray) -> SampleRecord:
    rollout = sample.rollout
    return SampleRecord(
        id=rollout.id,
        task_id=sample.task.id,
        domain=sample.task.domain,
        prompt_ids=rollout.prompt_ids,
        token_ids=rollout.token_ids,
        rollout_logprobs=rollout.logprobs,
        train_logprobs=train_logprobs,
        loss_mask=loss_mask,
        reward=sample.reward,
        advantage=sample.advantage,
        outcome=sample.verdict.outcome,
        finish=rollout.finish,
        versions=rollout.versions,
        generated=rollout.generated,
        turns=rollout.turns,
        text=sample.text,
        detail=sample.verdict.detail,
        reward_parts=sample.reward_parts,
        thinking=sample.task.thinking,
    )


def _behind_prompt(values: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """Values of the answer's tokens [answer] at their positions in a row of [n - 1]; 0 in the prompt."""
    row = np.zeros(len(answer), values.dtype)
    row[answer] = values
    return row
