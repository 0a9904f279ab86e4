"""Training of a reward model on preference pairs, as in Nemotron-Cascade 1 (arXiv 2512.13607, section 4).

    for each step:
        r = scalar head of the hidden state of each answer's last token, for both answers of every pair
        loss = mean over the pairs of  - log sigmoid(r_chosen - r_rejected)
        one optimizer step

The loss couples the two answers of a pair. So a step first computes the rewards of all answers, and then takes an
optimizer step on the sum of (d loss / d r) * r, which has the same gradient. The two answers of a pair may then be in
different micro-batches and on different ranks.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from cascade_rl.engine.backend.ranks import from_rank0
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.train.losses import RewardLoss
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.shaping import scored_text
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.trained_model import encode_answer, rewards
from cascade_rl.rl_stages.tasks.load_tasks import Split
from cascade_rl.rl_stages.tasks.pairs import Pair, load_pairs
from cascade_rl.rl_stages.tasks.row_form import RowForm
from cascade_rl.rl_stages.training_session import TrainingSession


def bradley_terry(chosen: np.ndarray, rejected: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean over pairs of -log sigmoid(chosen - rejected), and its slope by each chosen reward, times the pairs.

    Rewards and slopes are float [pairs]. The slope by a rejected reward has the opposite sign.
    """
    margin = chosen.astype(np.float64) - rejected
    return float(np.logaddexp(0, -margin).mean()), -1 / (1 + np.exp(np.clip(margin, -700, 700)))


def accuracy(chosen: np.ndarray, rejected: np.ndarray) -> float:
    """Share of pairs whose chosen answer has the higher reward; ties count half. Rewards are float [pairs]."""
    return float(np.heaviside(chosen - rejected, 0.5).mean())


class RewardSession(TrainingSession[RewardModelStage]):
    """A stage without a sampler. Its score is the share of held-out pairs whose chosen answer has the higher reward."""

    scalar_head = True

    def export(self) -> None:
        """The model and, next to it, its scalar head."""
        super().export()
        self.trainer.save_scalar_head(self.folder.export)

    def pairs(self, split: Split) -> list[Pair]:
        stage = self.stage
        sources, share = stage.data, self.cascade.withheld(stage)
        if split == "heldout" and stage.heldout:
            sources, share = stage.heldout, 1.0
        find = partial(load_pairs, split=split, seed=self.seed, heldout_fraction=share, form=RowForm.of(stage))
        lists = list(map(find, sources))
        return [pair for pairs in lists for pair in pairs]

    def encode(self, pair: Pair) -> tuple[TrainSequence, TrainSequence]:
        """The chosen and the rejected answer."""
        texts = (scored_text(pair.chosen), scored_text(pair.rejected))
        chosen, rejected = (encode_answer(self.tokenizer, pair.messages, text) for text in texts)
        return chosen, rejected

    def heldout_scores(self, when: str) -> Mapping[str, float]:
        """See `TrainingSession`."""
        return {self.stage.domain: accuracy(*np.split(rewards(self.trainer, from_rank0(self._heldout)), 2))}

    def _heldout(self) -> list[TrainSequence]:
        """All chosen held-out answers, then all rejected ones."""
        pairs = self.pairs("heldout")[: self.cascade.evaluation.prompts_per_domain]
        chosen, rejected = zip(*map(self.encode, pairs), strict=True)
        return [*chosen, *rejected]


def run(session: RewardSession) -> None:
    """Runs the remaining steps of the stage."""
    for step, batch in zip(session.steps(), _batches(session), strict=False):
        with session.phase("reward"):
            chosen, rejected = np.split(rewards(session.trainer, batch), 2)
            loss, slope = bradley_terry(chosen, rejected)
        with session.phase("update"):
            learned = session.trainer.update(with_slopes(batch, slope), RewardLoss(), step)
        del learned["replay_fraction"]  # no sampler chose the experts
        told = {"accuracy": accuracy(chosen, rejected), "margin": float((chosen - rejected).mean())}
        session.record(step + 1, {"loss": loss, **told, **learned}, sum(len(sequence.loss_mask) for sequence in batch))


def with_slopes(batch: Sequence[TrainSequence], slope: np.ndarray) -> list[TrainSequence]:
    """Adds "slope" for the loss. `batch`: all chosen, then all rejected answers. `slope` [pairs]: by chosen reward."""
    slopes = np.concatenate([slope, -slope]).astype(np.float32)
    return [
        replace(sequence, per_token={"slope": np.full(len(sequence.loss_mask), value)})
        for sequence, value in zip(batch, slopes, strict=True)
    ]


def _batches(session: RewardSession) -> Iterator[list[TrainSequence]]:
    """The batches of the remaining steps, each with all chosen answers, then all rejected ones."""
    stage = session.stage
    pairs = from_rank0(lambda: session.pairs("train"))
    order = _epochs(len(pairs), session.seed)
    for step in range(stage.steps):
        mine = [pairs[next(order)] for _ in range(stage.pairs_per_step)]
        if step >= session.first_step:
            chosen, rejected = zip(*map(session.encode, mine), strict=True)
            yield [*chosen, *rejected]


def _epochs(count: int, seed: int) -> Iterator[int]:
    """Random permutations of the numbers below `count`, one after the other."""
    rng = random.Random(seed)
    while True:
        yield from rng.sample(range(count), count)
