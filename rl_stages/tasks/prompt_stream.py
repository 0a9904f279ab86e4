"""The order of prompts, which depends only on the seed, on how many were taken, and on their pass rates."""

from collections.abc import Callable, Sequence

import numpy as np

from cascade_rl.rl_stages.config.grpo_stage import EpochFilter
from cascade_rl.rl_stages.core.task import Task

Admits = Callable[[Task], bool]


class NoPromptLeft(RuntimeError):
    """No prompt is left for the next epoch."""


def any_length(_task: Task) -> bool:
    """Admits every prompt."""
    return True


class PromptStream:
    """Endless passes over the tasks, each in a new order. A prompt comes back only after all others were used.

    An epoch filter selects the prompts of an epoch at its start, by the newest pass rate of each prompt. Prompts
    without a pass rate are kept, such as those of a batch that reaches into the next epoch. A prompt that `admits`
    refuses when its turn comes, because it is too long, is never used.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        seed: int,
        epoch_filter: EpochFilter | None = None,
        admits: Admits = any_length,
    ) -> None:
        self.tasks, self.seed, self.epoch_filter, self.admits = tasks, seed, epoch_filter, admits
        self.refused: set[int] = set()
        self.pass_rates: list[float | None] = [None] * len(tasks)
        self.epoch, self.order = 0, self._order(0)
        self.taken: list[int] = []  # the indices of the last `take`

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks."""
        self.taken = [self._next() for _ in range(count)]
        return [self.tasks[index] for index in self.taken]

    def learn(self, taken: Sequence[int], pass_rates: Sequence[float | None]) -> None:
        """The pass rates, in [0, 1], of tasks by what `take` had left of each in `taken`; None if unknown."""
        for index, rate in zip(taken, pass_rates, strict=True):
            if rate is not None:
                self.pass_rates[index] = rate

    def _next(self) -> int:
        while True:
            if not self.order:
                self.epoch += 1
                self.order = self._order(self.epoch)
            index = self.order.pop(0)
            if self.admits(self.tasks[index]):
                return index
            self.refused.add(index)

    def _order(self, epoch: int) -> list[int]:
        rng = np.random.default_rng((self.seed, epoch))
        order, chances = rng.permutation(len(self.tasks)), rng.random(len(self.tasks))
        chosen = [int(index) for index in order if chances[index] < self._share(self.pass_rates[index])]
        left = [index for index in chosen if index not in self.refused]
        if not left:
            raise NoPromptLeft(
                f"epoch {epoch + 1}: expected prompts that fit and are answered neither always right nor always wrong; "
                f"found none of {len(self.tasks)}, and {len(self.refused)} too long. Give the stage other data, lower "
                "min_answer_tokens, or switch epoch_filter off"
            )
        return left

    def _share(self, pass_rate: float | None) -> float:
        """The probability that a prompt with that pass rate is in the next epoch."""
        if self.epoch_filter is None or pass_rate not in (0.0, 1.0):
            return 1.0
        return self.epoch_filter.easy_readmission if pass_rate == 1.0 else self.epoch_filter.hard_readmission
