"""The process of one rank of one stage: `python -m cascade_rl.rl_stages.run_stage RUN_DIR STAGE_NAME`."""

import sys
from pathlib import Path

from cascade_rl.rl_stages import grpo, sft
from cascade_rl.rl_stages.exit_status import exit_status
from cascade_rl.rl_stages.run_folder import RunFolder
from cascade_rl.rl_stages.session import Session

LOOPS = {"sft": sft.run, "grpo": grpo.run}


def run_stage(run: RunFolder, name: str) -> int:
    """Takes the stage from where it stands to its end; returns exit code 0."""
    folder = run.stage(name)
    with Session(run, folder) as session:
        session.score("before")
        LOOPS[folder.config.kind](session)
        session.score("after")
        session.finish()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(sys.argv[2], lambda: run_stage(RunFolder.open(Path(sys.argv[1])), sys.argv[2])))
