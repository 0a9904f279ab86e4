"""Weights & Biases: a run per stage, in the group of the stage's name.

Its own variables apply: WANDB_PROJECT (cascade), WANDB_ENTITY, WANDB_MODE=offline, WANDB_API_KEY.
"""

import os
import secrets
from collections.abc import Mapping

from cascade_rl.rl_stages.run.trackers.tracker import Subject


class WeightsAndBiases:
    """A tracker. Steps are values of their own and no positions in the log, so that an offline run may go on too.

    What W&B would collect by itself could hold a secret, and is left out: terminal output, command line, code and git.
    """

    def __init__(self, subject: Subject, known: str | None) -> None:
        import wandb

        private = wandb.Settings(
            console="off", disable_git=True, save_code=False, x_disable_meta=True, x_disable_machine_info=True
        )
        self.id = known or secrets.token_hex(8)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "cascade"),
            id=self.id,
            resume="allow",
            name=subject.title,
            group=subject.stage,
            job_type=subject.kind,
            tags=[subject.run],
            config={**subject.settings, "hash": subject.hash},
            dir=str(subject.logs),
            settings=private,
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
