"""The console script `cascade`. Every command is imported when it is asked for."""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import NoReturn

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli import dry_run, parity
from cascade_rl.launchers.cli.launch import run_file
from cascade_rl.launchers.stage.exit_status import exit_status

DEMO = Path("runs/cascade2_tiny")


def main() -> NoReturn:
    sys.exit(exit_status("cascade", lambda: _run(sys.argv[1:])))


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["run"]:  # its arguments are the launcher file's to parse
        return run_file(arguments[1:])
    if arguments[:1] == ["data"]:
        from cascade_rl.launchers.cli import data

        return data.run(arguments[1:])
    if arguments[:1] == ["plan"]:
        from cascade_rl.launchers.plan import command

        return command.run(arguments[1:])
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
    kernels = benches.add_parser("kernels", help="log-prob and KL ops against baselines, side by side")
    kernels.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    kernels.set_defaults(command=_bench_kernels)
    packing = benches.add_parser("packing", help="the batch planner against first-fit-decreasing and Karmarkar-Karp")
    packing.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    packing.set_defaults(command=_bench_packing)
    refit = benches.add_parser("refit", help="bytes and seconds of moving the weights, against gather-and-broadcast")
    refit.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    refit.set_defaults(command=_bench_refit)
    verify = benches.add_parser("verify", help="checks per second of each verifier, and what a fork per test saves")
    verify.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    verify.set_defaults(command=_bench_verify)
    certificate = commands.add_parser("parity", help="are transformers, Megatron and vLLM one model, under a layout")
    parity.add_arguments(certificate)
    certificate.set_defaults(command=parity.run)
    commands.add_parser("run", help="the same as nemo-run")
    status = commands.add_parser("status", help="where each stage of a run stands")
    status.add_argument("run", type=Path, help="run folder")
    status.set_defaults(command=_status)
    compare = commands.add_parser("compare", help="settings and scores of two runs, side by side")
    compare.add_argument("first", type=Path, help="run folder")
    compare.add_argument("second", type=Path, help="run folder")
    compare.set_defaults(command=_compare)
    report = commands.add_parser("report", help="a run as one HTML file, with all its rollouts")
    report.add_argument("run", type=Path, help="run folder")
    report.add_argument("--out", type=Path, metavar="FILE", help="the file to write (report.html in the run folder)")
    report.add_argument("--rollouts", type=int, default=100_000, metavar="N", help="at most, evenly spread (100000)")
    report.set_defaults(command=_report)
    replay = commands.add_parser("replay", help="the update of a recorded step once more, compared with its record")
    replay.add_argument("run", type=Path, help="run folder")
    replay.add_argument("stage", help="name of a GRPO or MOPD stage")
    replay.add_argument("step", type=int, help="counting from 1")
    replay.set_defaults(command=_replay)
    doctor = commands.add_parser("doctor", help="how untrusted code is isolated here, tried by attacks")
    doctor.set_defaults(command=_doctor)
    dry = commands.add_parser("dry-run", help="builds a layout of any size on this CPU, without its memory")
    dry_run.add_arguments(dry)
    dry.set_defaults(command=_dry_run)
    commands.add_parser("plan", help="what fits on a GPU that is not there, and what a cascade costs")
    curve = commands.add_parser("curve", help="draws the reward over the steps of an RL stage")
    curve.add_argument("metrics", type=Path, help="the stage's metrics.jsonl")
    curve.add_argument("svg", type=Path, help="the picture to write")
    curve.set_defaults(command=_curve)
    swe_tasks = commands.add_parser("swe-tasks", help="repair tasks from an installed package, by mutation")
    swe_tasks.add_argument("package", help="an installed pure-Python distribution that holds its tests")
    swe_tasks.add_argument("out", type=Path, help="the .jsonl file to write; the repository goes beside it")
    domains = ("swe_executed", "swe_agentless", "swe_agentic")
    swe_tasks.add_argument("--domain", default=domains[0], choices=domains, help=f"of the rows ({domains[0]})")
    swe_tasks.add_argument("--count", type=int, default=100, metavar="N", help="tasks (100)")
    swe_tasks.add_argument("--seed", type=int, default=1, help="of the order of the mutants (1)")
    swe_tasks.set_defaults(command=_swe_tasks)
    commands.add_parser("data", help="checks, filters, deduplicates, decontaminates and mixes rows")
    upcycle = commands.add_parser("upcycle", help="a dense Qwen3 folder as a Qwen3-MoE that computes the same")
    upcycle.add_argument("dense", type=Path, help="Hugging Face model folder")
    upcycle.add_argument("out", type=Path, help="folder to write")
    upcycle.add_argument("--experts", type=int, required=True, metavar="N", help="copies of each MLP")
    upcycle.add_argument("--topk", type=int, required=True, metavar="K", help="experts of each token, 2 or more")
    upcycle.add_argument("--seed", type=int, default=1, help="of the random gates (1)")
    upcycle.set_defaults(command=_upcycle)
    return parser


def _status(options: argparse.Namespace) -> int:
    from cascade_rl.launchers.report import status

    return status.run(options.run)


def _compare(options: argparse.Namespace) -> int:
    from cascade_rl.launchers.cli import compare

    return compare.run(options.first, options.second)


def _report(options: argparse.Namespace) -> int:
    from cascade_rl.launchers.report import page

    return page.run(options.run, options.out, options.rollouts)


def _replay(options: argparse.Namespace) -> int:
    """Exit code 1 where a number parts from the recorded one."""
    from cascade_rl.engine.core.quiet_libraries import quiet_libraries

    quiet_libraries()
    from cascade_rl.launchers.cli import replay

    return replay.run(options.run, options.stage, options.step)


def _bench_kernels(options: argparse.Namespace) -> int:
    from cascade_rl.kernels import bench

    return bench.run(options.json)


def _bench_packing(options: argparse.Namespace) -> int:
    from cascade_rl.launchers.bench import packing as bench_packing

    return bench_packing.run(options.json)


def _bench_refit(options: argparse.Namespace) -> int:
    from cascade_rl.launchers.bench import refit as bench_refit

    return bench_refit.run(options.json, machine())


def _bench_verify(options: argparse.Namespace) -> int:
    from cascade_rl.launchers.bench import verify as bench_verify

    return bench_verify.run(options.json, machine())


def _bench_step(options: argparse.Namespace) -> int:
    from rich.console import Console

    from cascade_rl.launchers.report.score_table import phase_table
    from cascade_rl.rl_stages.config.stage import OnPolicyStage
    from cascade_rl.rl_stages.run.run_folder import RunFolder

    best: dict[str, dict[str, float]] = {}
    for stage in RunFolder.open(options.run).stages:
        steps = [event["seconds"] for event in stage.events.rows() if event["event"] == "step"]
        if isinstance(stage.config, OnPolicyStage) and steps:
            best[stage.config.name] = _best_phases(steps)
            title = f"{stage.label}: best of {len(steps)} steps"
            Console(highlight=False).print(phase_table(title, best[stage.config.name].items()))
    if not best:
        raise UserError(f"{options.run}: expected an RL stage with finished steps, found none.")
    print(f"on {machine()}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "seconds": best}, indent=2) + "\n")
    return 0


def _doctor(_: argparse.Namespace) -> int:
    from cascade_rl.launchers.cli import doctor

    return doctor.run()


def _dry_run(options: argparse.Namespace) -> int:
    from cascade_rl.engine.core.quiet_libraries import quiet_libraries

    quiet_libraries()
    return dry_run.run(options)


def _curve(options: argparse.Namespace) -> int:
    from cascade_rl.launchers.report.curve import curve_svg
    from cascade_rl.rl_stages.run.durable_file import JsonLines

    rewards = [row["reward"] for row in JsonLines(options.metrics).rows() if "reward" in row]
    if not rewards:
        raise UserError(f"{options.metrics}: expected the metrics.jsonl of an RL stage, found no reward in it.")
    options.svg.write_text(curve_svg("reward", rewards))
    return 0


def _swe_tasks(options: argparse.Namespace) -> int:
    """Exit code 1 where the package has fewer tasks."""
    from cascade_rl.rl_stages.swe_tasks import make_tasks

    report = make_tasks.write_tasks(options.package, options.out, options.domain, options.count, options.seed)
    print(report.text())
    return 0 if report.fates["kept"] == options.count else 1


def _upcycle(options: argparse.Namespace) -> int:
    from cascade_rl.engine.models.upcycling import upcycle

    upcycle(options.dense, options.out, experts=options.experts, topk=options.topk, seed=options.seed)
    print(f"{options.out}: every MLP of {options.dense} as {options.experts} experts, {options.topk} per token")
    return 0


def machine() -> str:
    """Hardware and versions of this machine, for the foot of a measurement; the run may be of another."""
    from importlib.metadata import version

    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "megatron-core", "transformers"))
    return f"{len(models)} cores of {models[0] if models else 'an unknown processor'}; {libraries}"


def _best_phases(steps: list[dict[str, float]]) -> dict[str, float]:
    """Smallest seconds of each phase and of the whole step."""
    phases = {phase: min(step[phase] for step in steps) for phase in steps[0]}
    return phases | {"whole step": min(sum(step.values()) for step in steps)}


if __name__ == "__main__":
    main()
