"""`nemo-run LAUNCHER.py [--runs DIR] [key=value ...]`, and `launch`, the last call of a launcher file.

Exit codes: 0, that of the failed rank, 1 for a job that failed on a cluster, 2 for bad input, 130 after Ctrl-C, 143
after SIGTERM. Torch-free. Modules that only a launch needs are imported late, so --help is fast.
"""

import argparse
import runpy
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.user_modules import find_modules_of
from cascade_rl.launchers.cli.version import version_line
from cascade_rl.launchers.stage.exit_status import USER_ERROR, exit_status

if TYPE_CHECKING:
    from cascade_rl.launchers.slurm.submit import Submission
    from cascade_rl.rl_stages.config.cascade import Cascade
    from cascade_rl.rl_stages.config.stage import Stage

USAGE = """usage: nemo-run LAUNCHER.py [--runs DIR] [--only STAGES | --from STAGE] [--rerun STAGES] [key=value ...]
                [--rehearse | --cluster NAME [--backend nemo-run|sbatch] [--detach | --dryrun DIR]]
       nemo-run --version

Runs the cascade that a launcher file describes, or resumes it if its run folder exists.

  nemo-run launchers/cascade2_tiny.py                          runs/cascade2_tiny, all stages
  nemo-run launchers/cascade2_tiny.py seed=2 name=other        another seed in another run folder
  nemo-run launchers/cascade2_tiny.py if_rl.optimizer.lr=1e-3  one setting of one stage
  nemo-run launchers/cascade2_tiny.py if_rl.steps=9 --rerun if_rl,math_rl   the same where both have run: they run again
  nemo-run launchers/cascade2_tiny.py --from mopd              that stage and those after it
  nemo-run launchers/cascade2_30b_a3b.py --cluster NAME        as Slurm jobs, with a profile of clusters.toml
  nemo-run launchers/cascade2_30b_a3b.py --rehearse            all its stages, small, in minutes on two cores
  nemo-run launchers/cascade2_tiny.py --help                   its stages, keys and options
  nemo-run launchers/cascade2_tiny.py --help if_rl.optimizer   what keys mean, with types, defaults and values
"""
STAGE_COMMAND = (sys.executable, "-m", "cascade_rl.launchers.stage.run_stage")


def main() -> NoReturn:
    """The console script `nemo-run`."""
    sys.exit(exit_status("nemo-run", lambda: run_file(sys.argv[1:])))


def launch(cascade: "Cascade", stage_command: Sequence[str] = STAGE_COMMAND) -> NoReturn:
    """Runs `cascade` as the command line says, and ends the process.

    Every rank of a stage runs `stage_command` with the arguments RUN_DIR and STAGE_NAME. Raises UserError if the
    launcher file was only to be read, as by `cascade plan`.
    """
    caller = sys._getframe(1).f_globals
    if caller["__name__"] != "__main__":
        raise UserError(
            f'{caller["__file__"]}: expected launch(...) under `if __name__ == "__main__":`, found it without. Add '
            "that line, so that the file can be read without being launched."
        )
    sys.exit(exit_status("nemo-run", lambda: _launch(cascade, sys.argv[1:], stage_command)))


def run_file(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if arguments else USER_ERROR
    if arguments[0] == "--version":
        print(version_line())
        return 0
    file = arguments[0]
    if not Path(file).is_file():
        raise UserError(f"no such file: {file}. The first argument must be a launcher file (LAUNCHER.py).")
    if not file.endswith(".py"):
        raise UserError(f"expected a launcher file (LAUNCHER.py), found '{file}'.")
    sys.argv = arguments
    find_modules_of(Path(file).resolve().parent)
    runpy.run_path(file, run_name="__main__")
    raise UserError(f"{file}: expected a file that ends with launch(...), found no such call.")


def _launch(cascade: "Cascade", arguments: list[str], stage_command: Sequence[str]) -> int:
    find_modules_of(Path(sys.argv[0]).resolve().parent)  # where it was started by python itself
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    if options.help is not None:
        return _help(cascade, parser, options.help)
    if options.cluster is None and (options.detach or options.dryrun):
        raise UserError("expected --cluster NAME with --dryrun or --detach, found none.")
    if options.rehearse and (options.cluster or options.only or options.first):
        raise UserError(
            "expected --rehearse without --cluster, --only and --from: it plays all stages on this machine."
        )

    from cascade_rl.launchers.local.rerun import agree
    from cascade_rl.launchers.local.run_local import run_cascade
    from cascade_rl.launchers.slurm.cluster import read_cluster
    from cascade_rl.launchers.slurm.submit import Submission, refuse_live_jobs
    from cascade_rl.rl_stages.config.text import override
    from cascade_rl.rl_stages.run.stage_graph import selection

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    cluster = read_cluster(options.cluster, Path(sys.argv[0]).resolve()) if options.cluster else None
    hardware = [f"hardware={cluster.hardware}"] if cluster else []
    cascade = override(cascade, [*hardware, *options.settings])
    chosen = selection(cascade, options.only, options.first)
    agreed = partial(agree, cascade, options.rerun.split(",") if options.rerun else [])
    if cluster:
        how = Submission(cluster, options.backend, stage_command, options.detach, agreed)
        return _launch_on_cluster(cascade, chosen, how, options)
    if options.rehearse:
        from cascade_rl.launchers.rehearse.command import rehearse

        return rehearse(cascade, options.runs, stage_command)
    refuse_live_jobs((options.runs / cascade.name).resolve())
    return run_cascade(cascade, options.runs, stage_command, chosen, agreed)


def _launch_on_cluster(
    cascade: "Cascade", chosen: "Sequence[Stage]", how: "Submission", options: argparse.Namespace
) -> int:
    from cascade_rl.launchers.slurm.submit import run_on_cluster

    root = (options.runs / cascade.name).resolve()
    if options.dryrun is None:
        return run_on_cluster(cascade, root, chosen, how)
    from cascade_rl.launchers.slurm.dryrun import write_dryrun

    write_dryrun(cascade, root, chosen, how, options.dryrun.resolve())
    print(f"{options.dryrun}: wrote the jobs, the resolved configuration and the plan; submitted nothing")
    return 0


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """Ends by SystemExit, so that every open context manager stops what it started."""
    sys.exit(128 + number)


def _help(cascade: "Cascade", parser: argparse.ArgumentParser, key: str) -> int:
    from cascade_rl.launchers.help.launcher_page import explain, overview

    print(explain(cascade, key) if key else f"{parser.format_help()}\n{overview(cascade)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"nemo-run {sys.argv[0]}",
        description="Runs or resumes the cascade of the launcher file.",
        add_help=False,
        allow_abbrev=False,
    )
    explained = "show this, or what a key means, or all keys below it"
    parser.add_argument("-h", "--help", nargs="?", const="", metavar="KEY", help=explained)
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of run folders (runs)")
    parser.add_argument("--only", metavar="STAGE[,STAGE]", help="run only these stages")
    parser.add_argument("--from", dest="first", metavar="STAGE", help="run this stage and those that follow")
    parser.add_argument("--rerun", metavar="STAGE[,STAGE]", help="agree that these, where changed, are trained again")
    parser.add_argument("--rehearse", action="store_true", help="play the whole cascade on this machine, made small")
    parser.add_argument("--cluster", metavar="NAME", help="submit Slurm jobs, by this profile of clusters.toml")
    parser.add_argument("--backend", choices=("nemo-run", "sbatch"), default="nemo-run", help="how to submit them")
    parser.add_argument("--detach", action="store_true", help="submit the jobs without waiting for them")
    parser.add_argument("--dryrun", type=Path, metavar="DIR", help="write the jobs to DIR, submit nothing")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="override a key of the launcher file")
    return parser


if __name__ == "__main__":
    main()
