"""Records the prompts of each step on disk, so that a resumed run has the same prompt position and pass rates."""

from collections.abc import Sequence
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
    """A stage's prompt stream and prompts.jsonl, with one row per draw: its step, its tasks and their pass rates.

    A resumed run drops the draws of unfinished steps from the file and makes the same draws again. Raises UserError if
    the stream does not reproduce the finished draws, because the data have changed.
    """

    def __init__(self, session: Session[GrpoStage]) -> None:
        stage = session.stage
        self.room = session.prompt_room(session.cascade.room(stage), stage.thinking_fraction)
        heldout = session.cascade.withheld(stage)
        how = (session.seed, stage.epoch_filter, self.room.admits)
        self.stream = open_prompts(stage.data, *how, heldout_fraction=heldout, form=RowForm.of(stage))
        self.file = JsonLines(session.folder.root / "prompts.jsonl")
        rows = from_rank0(lambda: self._finished(session.first_step))
        for row in rows:
            self._replay(row)
        missing = set(range(1, session.first_step + 1)) - {row["step"] for row in rows}
        if missing:
            raise UserError(
                f"{self.file.path}: expected draws of step {min(missing)}, found none. Remove the stage's folder"
            )

    def take(self, count: int) -> list[Task]:
        return self.stream.take(count)

    def learn(self, step: int, tasks: Sequence[Task], pass_rates: Sequence[float | None]) -> None:
        """Ends a draw of step `step`, counting from 0, with the pass rates of the tasks of the last `take`."""
        self.stream.learn(pass_rates)
        if is_rank0():
            names = [task.id for task in tasks]
            self.file.append({"step": step + 1, "tasks": names, "pass_rates": list(pass_rates)})

    def _finished(self, steps: int) -> list[dict[str, Any]]:
        self.file.keep(lambda row: row["step"] <= steps)
        return self.file.rows()

    def _replay(self, row: dict[str, Any]) -> None:
        found = [task.id for task in self.stream.take(len(row["tasks"]))]
        if found != row["tasks"]:
            raise UserError(
                f"{self.file.path}: step {row['step']} drew {row['tasks'][:3]}..., and the data now give "
                f"{found[:3]}... there. Put the data back as they were, or give the run another name"
            )
        self.stream.learn(row["pass_rates"])
