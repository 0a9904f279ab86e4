"""The process of one rank of one stage: `python -m cascade_rl.launchers.stage.run_stage RUN_DIR STAGE_NAME`."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.quiet_libraries import quiet_libraries
from cascade_rl.engine.core.uncollected import uncollected
from cascade_rl.engine.core.user_modules import imported
from cascade_rl.launchers.stage.exit_status import exit_status
from cascade_rl.launchers.stage.last_words import kept
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.stop_request import STOPPED, StopRequested


def run_stage(run: RunFolder, name: str) -> int:
    """Runs or resumes the stage to its end. Returns exit code 0, or STOPPED if it was asked to stop."""
    with uncollected():
        from cascade_rl.engine.backend.machine import backend

        # Before the import of Megatron: on a CPU the backend leaves out the compiler, 2 s of the start.
        backend().keep_compiled(run.cache)
        from cascade_rl.distillation import mopd
        from cascade_rl.rl_stages import bradley_terry, grpo, sft
        from cascade_rl.rl_stages.session import Session
        from cascade_rl.rl_stages.training_session import TrainingSession

    loops: dict[str, Callable[[Any], None]] = {
        "sft": sft.run, "grpo": grpo.run, "mopd": mopd.run, "reward_model": bradley_terry.run
    }  # fmt: skip
    folder = run.stage(name)
    stage = folder.config
    session_of: type[TrainingSession[Any]] = Session
    if not stage.trains_policy:
        session_of = bradley_terry.RewardSession
    elif not run.cascade.has_sampler(stage):
        session_of, loops["sft"] = sft.SftSession, sft.learn
    loop = imported(stage.loop, stage.kind) if stage.loop else loops[stage.kind]
    with suppress(StopRequested), session_of(run, folder) as session:
        session.score("before")
        loop(session)
        session.score("after")
        session.finish()
        return 0
    return STOPPED


def main(root: Path, name: str) -> int:
    run = RunFolder.open(root)
    return kept(run.stage(name).logs, int(os.environ["RANK"]), lambda: run_stage(run, name))


if __name__ == "__main__":
    quiet_libraries()
    sys.exit(exit_status(sys.argv[2], lambda: main(Path(sys.argv[1]), sys.argv[2])))
