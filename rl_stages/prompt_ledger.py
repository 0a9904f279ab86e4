"""Records the prompts of each step on disk, so that a resumed run has the same prompt position and pass rates."""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from cascade_rl.engine.backend.ranks import from_rank0, is_rank0
from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.run.durable_file import JsonLines
from cascade_rl.rl_stages.session import Session
from cascade_rl.rl_stages.tasks.prompt_blend import open_prompts
from cascade_rl.rl_stages.tasks.row_form import RowForm


class PromptLedger:
    """A stage's prompt stream and prompts.jsonl, with one row per draw: its step, the tasks whose groups it gave and
    their pass rates.

    The first draw of a step may be taken `rollout.steps_ahead` steps ahead, and may give groups of other steps' prompts
    (`rollout.batch_order`). A resumed run drops the draws of
    unfinished steps from the file and takes the same prompts again, in the same order. Raises UserError if the stream
    does not reproduce the finished draws, because the data have changed.
    """

    def __init__(self, session: Session[GrpoStage]) -> None:
        rollout = session.layout.rollout
        self.stage, self.ahead, self.in_order = session.stage, rollout.steps_ahead, rollout.batch_order == "starting"
        self.room = session.prompt_room(session.cascade.room(self.stage), self.stage.thinking_fraction)
        heldout = session.cascade.withheld(self.stage)
        how = (session.seed, self.stage.epoch_filter, self.room.admits)
        self.stream = open_prompts(self.stage.data, *how, heldout_fraction=heldout, form=RowForm.of(self.stage))
        self.file = JsonLines(session.folder.root / "prompts.jsonl")
        self._drawn: dict[tuple[int, int], list[Task]] = {}  # by step and number of the draw
        self._unlearned = defaultdict[str, deque[Any]](deque)  # by task, what the stream says of each time it was taken
        rows = from_rank0(lambda: self._finished(session.first_step))
        for step, draws in groupby(rows, lambda row: row["step"]):
            self._replay(step, list(draws))
        missing = set(range(1, session.first_step + 1)) - {row["step"] for row in rows}
        if missing:
            raise UserError(
                f"{self.file.path}: expected draws of step {min(missing)}, found none. Remove the stage's folder"
            )

    def take(self, step: int, number: int, count: int) -> list[Task]:
        """The prompts of draw `number` of step `step`; both count from 0."""
        if (step, number) not in self._drawn:
            self._drawn[step, number] = self.stream.take(count)
            for task, taken in zip(self._drawn[step, number], self.stream.taken, strict=True):
                self._unlearned[task.id].append(taken)
        return self._drawn[step, number]

    def learn(self, step: int, number: int, tasks: Sequence[Task], pass_rates: Sequence[float | None]) -> None:
        """Ends a draw, which gave groups of these tasks, with their pass rates."""
        names = [task.id for task in tasks]
        self._learn(step, number, names, pass_rates)
        if is_rank0():
            self.file.append({"step": step + 1, "tasks": names, "pass_rates": list(pass_rates)})

    def _learn(self, step: int, number: int, names: Sequence[str], pass_rates: Sequence[float | None]) -> None:
        self._drawn = {draw: tasks for draw, tasks in self._drawn.items() if draw[0] >= step}
        self.stream.learn([self._unlearned[name].popleft() for name in names], pass_rates)

    def _finished(self, steps: int) -> list[dict[str, Any]]:
        self.file.keep(lambda row: row["step"] <= steps)
        return self.file.rows()

    def _replay(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        """The draws of finished step `step`, counting from 1, then those that it took ahead."""
        for number, row in enumerate(rows):
            found = [task.id for task in self.take(step - 1, number, len(row["tasks"]))]
            taken = Counter(row["tasks"])
            if (self.in_order and found != row["tasks"]) or any(len(self._unlearned[n]) < taken[n] for n in taken):
                raise UserError(
                    f"{self.file.path}: step {step} drew {row['tasks'][:3]}..., and the data now give "
                    f"{found[:3]}... there. Put the data back as they were, or give the run another name"
                )
            self._learn(step - 1, number, row["tasks"], row["pass_rates"])
        for later in range(step, min(step + self.ahead, self.stage.steps)):
            self.take(later, 0, self.stage.at(later).prompts_per_step)
