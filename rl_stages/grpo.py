"""On-policy GRPO with verified rewards, the RL loop of both papers (facts/paper.md 1.1).

    for each step:
        sample a group of answers per prompt from the current weights
        score them; advantage = (reward - group mean) / group std, the same for every token of an answer
        one optimizer step on  - sum over all tokens of (w A log pi) / number of tokens
        move the new weights into the sampler

w is the importance weight of the gap between trainer and sampler; the policy ratio itself is 1, because each batch is
used once. The trainer's log-probs are taken before the update and compared with the sampler's: a gap beyond
`tme_bound` ends the run before it can harm the weights.
"""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np

from cascade_rl.engine.losses import GrpoLoss, group_advantages
from cascade_rl.engine.ranks import from_rank0
from cascade_rl.engine.sample import Outcome, Rollout, Sequence
from cascade_rl.rl_stages.agreement import require_agreement, require_replay
from cascade_rl.rl_stages.config import GrpoStage
from cascade_rl.rl_stages.prompt_stream import PromptStream
from cascade_rl.rl_stages.scored_sample import Sample, outcomes, record
from cascade_rl.rl_stages.session import Session
from cascade_rl.rl_stages.task import Task
from cascade_rl.rl_stages.verdict import Verdict


class NothingToLearn(RuntimeError):
    """No sample of a step may be trained on."""


def run(session: Session[GrpoStage]) -> None:
    """All steps that the stage still has to take."""
    stage, trainer = session.stage, session.trainer
    prompts = PromptStream(session.tasks(stage.data, "train"), session.seed)
    loss = GrpoLoss(stage.importance, stage.importance_low, stage.importance_high, stage.kl_coefficient)
    for step in session.steps():
        tasks = prompts.batch(step, stage.prompts_per_step)
        with session.phase("generation"):
            groups = session.draw(f"{stage.name}/{step + 1}", tasks, stage.rollouts_per_prompt, stage.sampling)
        with session.phase("reward"):
            samples = from_rank0(partial(_score, session, tasks, groups))
        _require_trained(samples, step)
        sequences = [sample.sequence(stage.sampling.temperature) for sample in samples]
        with session.phase("log-prob"):
            train_logprobs = trainer.log_probs(sequences)
            gap = require_agreement(sequences, train_logprobs, stage.tme_bound, step)
            sequences = _with_reference(session, sequences)
        with session.phase("update"):
            learned = trainer.update(sequences, loss, step)
        require_replay(learned["replay_fraction"], step)
        with session.phase("refit"):
            probe_gap = session.refit(step + 1)
        records = [record(*parts) for parts in zip(samples, sequences, train_logprobs, strict=True)]
        signal = float(np.mean([sample.advantage != 0 for sample in samples]))
        metrics = {**outcomes(samples), "signal_fraction": signal, **gap, **learned, "probe_gap": probe_gap}
        session.record(step + 1, metrics, sum(len(sample.rollout.token_ids) for sample in samples), records)


def _score(session: Session[GrpoStage], tasks: list[Task], groups: list[list[Rollout]]) -> list[Sample]:
    """Verdicts of all answers, and advantages inside each group."""
    samples: list[Sample] = []
    for task, rollouts, answers in zip(tasks, groups, session.judge(tasks, groups), strict=True):
        texts, verdicts = zip(*answers, strict=True)
        trained = [_is_trained(verdict, session.stage.overlong) for verdict in verdicts]
        rewards = np.array([np.nan if verdict.score is None else verdict.score for verdict in verdicts])
        advantages = group_advantages(rewards, np.array(trained))
        samples += map(Sample, [task] * len(rollouts), rollouts, texts, verdicts, map(float, advantages), trained)
    return samples


def _require_trained(samples: list[Sample], step: int) -> None:
    if any(sample.trained for sample in samples):
        return
    counts = Counter(sample.verdict.outcome.value for sample in samples)
    raise NothingToLearn(
        f"step {step + 1}: expected samples to train on, found only {dict(counts)} "
        f"(last: {samples[-1].verdict.detail}). Truncated samples are trained on with overlong=penalty, "
        "infrastructure failures never"
    )


def _is_trained(verdict: Verdict, overlong: str) -> bool:
    if verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE:
        return False
    return not (verdict.outcome is Outcome.TRUNCATED and overlong == "filter")


def _with_reference(session: Session[GrpoStage], sequences: list[Sequence]) -> list[Sequence]:
    """Adds the log-probs of the stage's first weights where the loss has a KL term."""
    if session.reference is None:
        return sequences
    with session.reference.in_place():
        logprobs = session.trainer.log_probs(sequences)
    return [
        replace(sequence, per_token={**sequence.per_token, "reference_logprob": values})
        for sequence, values in zip(sequences, logprobs, strict=True)
    ]
