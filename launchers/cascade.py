"""The console script `cascade`. Every command is imported when it is asked for."""

import argparse
import json
import sys
from pathlib import Path
from typing import NoReturn

from cascade_rl.engine.errors import UserError
from cascade_rl.rl_stages.exit_status import exit_status

DEMO = Path("runs/cascade2_tiny")


def main() -> NoReturn:
    sys.exit(exit_status("cascade", lambda: _run(sys.argv[1:])))


def _run(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    return int(options.command(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cascade", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    benches = commands.add_parser("bench", help="measurements").add_subparsers(required=True, metavar="WHAT")
    step = benches.add_parser("step", help="seconds per phase of an RL step, best of the steps of a run")
    step.add_argument("run", type=Path, nargs="?", default=DEMO, help=f"run folder ({DEMO})")
    step.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    step.set_defaults(command=_bench_step)
    return parser


def _bench_step(options: argparse.Namespace) -> int:
    from rich.console import Console

    from cascade_rl.rl_stages.config import GrpoStage
    from cascade_rl.rl_stages.run_folder import RunFolder
    from cascade_rl.rl_stages.table import phase_table

    best: dict[str, dict[str, float]] = {}
    for stage in RunFolder.open(options.run).stages:
        steps = [event["seconds"] for event in stage.events.rows() if event["event"] == "step"]
        if isinstance(stage.config, GrpoStage) and steps:
            best[stage.config.name] = _best_phases(steps)
            title = f"{stage.label}: best of {len(steps)} steps"
            Console(highlight=False).print(phase_table(title, best[stage.config.name].items()))
    if not best:
        raise UserError(f"{options.run}: expected an RL stage with finished steps, found none.")
    if options.json:
        options.json.write_text(json.dumps(best, indent=2) + "\n")
    return 0


def _best_phases(steps: list[dict[str, float]]) -> dict[str, float]:
    """Smallest seconds of each phase and of the whole step."""
    phases = {phase: min(step[phase] for step in steps) for phase in steps[0]}
    return phases | {"whole step": min(sum(step.values()) for step in steps)}


if __name__ == "__main__":
    main()
