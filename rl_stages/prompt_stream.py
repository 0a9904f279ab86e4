"""Which prompts a step uses: a function of seed and step alone, so that a resumed run draws what it would have."""

from collections.abc import Sequence

import numpy as np

from cascade_rl.rl_stages.task import Task


class PromptStream:
    """Endless passes over the tasks, each in a new order; a prompt comes back only after all others were used."""

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        self.tasks, self.seed = tasks, seed

    def batch(self, step: int, count: int) -> list[Task]:
        """The `count` tasks of step `step`, counting from 0."""
        return [self._draw(position) for position in range(step * count, (step + 1) * count)]

    def _draw(self, position: int) -> Task:
        epoch, place = divmod(position, len(self.tasks))
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.tasks))
        return self.tasks[order[place]]
