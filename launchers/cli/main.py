"""The console script `cascade`. A command's modules are imported only when it runs."""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli import dry_run, new, parity, swe_import
from cascade_rl.launchers.cli.launch import run_file
from cascade_rl.launchers.cli.version import version_line
from cascade_rl.launchers.stage.exit_status import exit_status

DEMO, SHORT = Path("runs/cascade2_tiny"), Path("runs/cascade2_short")

type Commands = argparse._SubParsersAction[argparse.ArgumentParser]
type Run = Callable[[argparse.Namespace], int]


def main() -> NoReturn:
    sys.exit(exit_status("cascade", lambda: _run(sys.argv[1:])))


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["run"]:  # the launcher file parses its own arguments
        return run_file(arguments[1:])
    if arguments[:1] == ["data"]:
        from cascade_rl.launchers.cli import data

        return data.run(arguments[1:])
    if arguments[:1] == ["plan"]:
        from cascade_rl.launchers.plan import command

        return command.run(arguments[1:])
    if arguments[:1] == ["eval"]:
        from cascade_rl.launchers.evaluate import command as evaluate

        return evaluate.run(arguments[1:])
    if arguments[:1] == ["verify"]:
        from cascade_rl.launchers.verify import command as verify

        return verify.run(arguments[1:])
    if arguments[:1] == ["verify-published"]:
        from cascade_rl.launchers.verify.published import command as verify_published

        return verify_published.run(arguments[1:])
    options = _parser().parse_args(arguments)
    return int(options.command(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cascade",
        description="Post-training of reasoning models: Megatron-Core trains, vLLM samples.",
        epilog="'cascade COMMAND --help' describes a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version_line())
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    commands.add_parser("run", help="Run or resume the cascade of a launcher file (same as nemo-run)")
    begin = "Make a folder with a launcher, a reward and rows, which runs as it is"
    new.add_arguments(_command(commands, "new", new.run, begin))
    commands.add_parser("plan", help="Estimate memory, time and storage of a cascade, without a GPU")
    _add_run_commands(commands)
    _add_model_commands(commands)
    _add_data_commands(commands)
    fit = "Check how well this machine isolates untrusted code, or with --gpu that its cards can train and sample"
    doctor = _command(commands, "doctor", _doctor, fit, "Exit code 1 if an attack is not contained.")
    minutes = "check cards instead, ending with a training step, a refit and a generation; exit codes: docs/gpu.md"
    doctor.add_argument("--gpu", action="store_true", help=minutes)
    measured = "step, async, control, kernels, packing, refit, stream, verify"
    _add_benches(commands.add_parser("bench", help=f"Measure speed: {measured}"))
    return parser


def _add_run_commands(commands: Commands) -> None:
    status = _command(commands, "status", _status, "Show the state and the scores of each stage of a run")
    status.add_argument("run", type=Path, help="run folder")
    compare = _command(commands, "compare", _compare, "Show how two runs differ, in settings and scores")
    compare.add_argument("first", type=Path, help="run folder")
    compare.add_argument("second", type=Path, help="run folder")
    report = _command(commands, "report", _report, "Write a run, rollouts included, as one HTML file")
    report.add_argument("run", type=Path, help="run folder")
    report.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: run/report.html)")
    some = "include at most N rollouts, evenly spread over the run (default: 100000)"
    report.add_argument("--rollouts", type=int, default=100_000, metavar="N", help=some)
    watch = _command(commands, "watch", _watch, "Serve the report of a run on this machine's loopback while it trains")
    watch.add_argument("run", type=Path, help="run folder")
    watch.add_argument("--port", type=int, default=8765, metavar="N", help="default: 8765; 0: any that is free")
    few = "include at most N rollouts, evenly spread over the run (default: 2000)"
    watch.add_argument("--rollouts", type=int, default=2_000, metavar="N", help=few)
    again = "Recompute a recorded step and compare it with its record"
    replay = _command(commands, "replay", _replay, again, "Exit code 1 if a number differs.")
    replay.add_argument("run", type=Path, help="run folder")
    replay.add_argument("stage", help="name of a GRPO or MOPD stage")
    replay.add_argument("step", type=int, help="number of the step, from 1")
    curve = _command(commands, "curve", _curve, "Draw the reward curve of an RL stage as SVG")
    curve.add_argument("metrics", type=Path, help="metrics.jsonl of the stage")
    curve.add_argument("svg", type=Path, help="picture to write")


def _add_model_commands(commands: Commands) -> None:
    same = "Check that transformers, Megatron and vLLM agree on log-probs"
    parity.add_arguments(_command(commands, "parity", parity.run, same, "Exit code 1 if a gap exceeds its bound."))
    layout = "Show the memory of each rank of a parallel layout, without a GPU"
    dry_run.add_arguments(_command(commands, "dry-run", _dry_run, layout))
    step = "Run a training step of one rank of a stage on fake tensors, and compare its memory with the plan's"
    dry_step = _command(commands, "dry-step", _dry_step, step)
    dry_step.add_argument("launcher", type=Path, help="launcher file")
    dry_step.add_argument("stage", help="name of a stage that trains a policy")
    dry_step.add_argument("settings", nargs="*", metavar="key=value", help="override a key of the launcher file")
    dry_step.add_argument("--hardware", default="h100", metavar="NAME", help="GPU of hardware.toml (default: h100)")
    dry_step.add_argument("--rank", type=int, default=0, metavar="N", help="rank of the stage (default: 0)")
    upcycle = _command(commands, "upcycle", _upcycle, "Turn a dense Qwen3 into a Qwen3-MoE that computes the same")
    upcycle.add_argument("dense", type=Path, help="Hugging Face model folder")
    upcycle.add_argument("out", type=Path, help="folder to write")
    upcycle.add_argument("--experts", type=int, required=True, metavar="N", help="copies of each MLP")
    upcycle.add_argument("--topk", type=int, required=True, metavar="K", help="experts per token, at least 2")
    upcycle.add_argument("--seed", type=int, default=1, help="seed of the random gates (default: 1)")


def _add_data_commands(commands: Commands) -> None:
    commands.add_parser("data", help="Convert, check, rate, filter, deduplicate, decontaminate and mix data")
    commands.add_parser("eval", help="Sample a model's answers to rows and score them, with confidence intervals")
    commands.add_parser("verify", help="Score answers by their rows, or a run's rollouts by the rules of today")
    commands.add_parser("verify-published", help="Score published answers, and compare with their published scores")
    mutate = "Make repair tasks by mutating an installed package"
    swe_tasks = _command(commands, "swe-tasks", _swe_tasks, mutate, "Exit code 1 if the package gives fewer than N.")
    swe_tasks.add_argument("package", help="installed pure-Python distribution that contains its tests")
    swe_tasks.add_argument("out", type=Path, help=".jsonl file to write; the repository is written next to it")
    _add_swe_domain(swe_tasks)
    swe_tasks.add_argument("--count", type=int, default=100, metavar="N", help="number of tasks (default: 100)")
    swe_tasks.add_argument("--seed", type=int, default=1, help="seed of the order of the mutants (default: 1)")
    published = "Convert rows of SWE-bench, SWE-Gym, R2E-Gym or SWE-smith"
    imports = _command(commands, "swe-import", swe_import.run, published, "Exit code 1 if none could be converted.")
    swe_import.add_arguments(imports)
    _add_swe_domain(imports)


def _add_swe_domain(parser: argparse.ArgumentParser) -> None:
    domains = ("swe_executed", "swe_agentless", "swe_agentic")
    of_rows = f"domain of the rows (default: {domains[0]})"
    parser.add_argument("--domain", default=domains[0], choices=domains, help=of_rows)


def _add_benches(parser: argparse.ArgumentParser) -> None:
    benches = parser.add_subparsers(title="benchmarks", required=True, metavar="WHAT")
    step = _bench(benches, "step", _bench_step, "Show the best time of each phase of the RL steps of a run")
    step.add_argument("run", type=Path, nargs="?", default=DEMO, help=f"run folder (default: {DEMO})")
    ahead = _bench(benches, "async", _bench_async, "Time RL in turn and one step ahead, with a core for each side")
    ahead.add_argument("run", type=Path, nargs="?", default=SHORT, help=f"run whose RL it repeats (default: {SHORT})")
    ahead.add_argument("--steps", type=int, default=10, metavar="N", help="steps of each run, 3 or more (default: 10)")
    ahead.add_argument("--rounds", type=int, default=3, metavar="N", help="runs in each way, in turn (default: 3)")
    control = _bench(benches, "control", _bench_control, "Measure what the ranks of a large job cost each other")
    control.add_argument("--ranks", type=int, default=512, metavar="N", help="trainer ranks (default: 512)")
    _bench(benches, "kernels", _bench_kernels, "Time the log-prob and KL ops against their baselines")
    _bench(benches, "packing", _bench_packing, "Compare the batch planner with two packing algorithms")
    _bench(benches, "refit", _bench_refit, "Measure bytes and time of a refit against gather-and-broadcast")
    stream = _bench(benches, "stream", _bench_stream, "Measure what the arrays of a step cost the ranks of a large job")
    stream.add_argument("--ranks", type=int, default=512, metavar="N", help="trainer ranks (default: 512)")
    stream.add_argument(
        "--samples", type=int, default=2048, metavar="N", help="samples of 49,152 tokens (default: 2048)"
    )
    _bench(benches, "verify", _bench_verify, "Measure the checks per second of each verifier")


def _command(commands: Commands, name: str, run: Run, text: str, more: str = "") -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=f"{text}. {more}")
    parser.set_defaults(command=run)
    return parser


def _bench(benches: Commands, name: str, run: Run, text: str) -> argparse.ArgumentParser:
    parser = _command(benches, name, run, text)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    return parser


def _status(options: argparse.Namespace) -> int:
    from cascade_rl.launchers.report import status
    from cascade_rl.launchers.slurm.job_states import live_stages

    return status.run(options.run, live_stages(options.run.resolve()))


def _compare(options: argparse.Namespace) -> int:
    from cascade_rl.launchers.cli import compare

    return compare.run(options.first, options.second)


def _report(options: argparse.Namespace) -> int:
    from cascade_rl.launchers.report import page
    from cascade_rl.launchers.slurm.job_states import live_stages

    return page.run(options.run, options.out, options.rollouts, live_stages(options.run.resolve()))


def _watch(options: argparse.Namespace) -> int:
    from cascade_rl.launchers.report import watch
    from cascade_rl.launchers.slurm.job_states import live_stages

    root = options.run.resolve()
    return watch.run(options.run, options.port, options.rollouts, lambda: live_stages(root))


def _replay(options: argparse.Namespace) -> int:
    """Exit code 1 if a number differs from the recorded one."""
    from cascade_rl.engine.core.quiet_libraries import quiet_libraries
    from cascade_rl.launchers.stage.recorded_step import RecordedStep

    found = RecordedStep.find(options.run, options.stage, options.step)
    quiet_libraries()
    from cascade_rl.launchers.cli import replay

    return replay.run(found)


def _bench_async(options: argparse.Namespace) -> int:
    from cascade_rl.launchers.bench import asynchronous

    return asynchronous.run(options.json, machine(), options.run, options.steps, options.rounds)


def _bench_control(options: argparse.Namespace) -> int:
    from cascade_rl.engine.core.quiet_libraries import quiet_libraries

    quiet_libraries()
    from cascade_rl.launchers.bench import control

    return control.run(options.json, machine(), options.ranks)


def _bench_stream(options: argparse.Namespace) -> int:
    from cascade_rl.engine.core.quiet_libraries import quiet_libraries

    quiet_libraries()
    from cascade_rl.launchers.bench import stream

    return stream.run(options.json, machine(), options.ranks, options.samples)


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
        raise UserError(f"{options.run}: expected an RL stage with finished steps, found none. Run one first.")
    print(f"on {machine()}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "seconds": best}, indent=2) + "\n")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    if options.gpu:
        from cascade_rl.engine.core.quiet_libraries import quiet_libraries

        quiet_libraries()
        from cascade_rl.launchers.card import command

        return command.run()
    from cascade_rl.launchers.cli import doctor

    return doctor.run()


def _dry_run(options: argparse.Namespace) -> int:
    from cascade_rl.engine.core.quiet_libraries import quiet_libraries

    quiet_libraries()
    return dry_run.run(options)


def _dry_step(options: argparse.Namespace) -> int:
    from cascade_rl.engine.core.quiet_libraries import quiet_libraries

    quiet_libraries()
    from cascade_rl.launchers.cli import dry_step

    return dry_step.run(options)


def _curve(options: argparse.Namespace) -> int:
    from cascade_rl.launchers.report.curve import curve_svg
    from cascade_rl.rl_stages.run.durable_file import JsonLines

    if options.metrics.is_dir():
        raise UserError(
            f"{options.metrics}: expected the metrics.jsonl of an RL stage, found a folder: name that of "
            "RUN/stages/NN_STAGE in it"
        )
    rewards = [row["reward"] for row in JsonLines(options.metrics).rows() if "reward" in row]
    if not rewards:
        raise UserError(f"{options.metrics}: expected the metrics.jsonl of an RL stage, found no reward in it.")
    options.svg.write_text(curve_svg("reward", rewards))
    return 0


def _swe_tasks(options: argparse.Namespace) -> int:
    """Exit code 1 if the package gives fewer tasks."""
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
    """Hardware and library versions of this machine. A run that is measured may come from another one."""
    from importlib.metadata import version

    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "megatron-core", "transformers"))
    return f"{len(models)} cores of {models[0] if models else 'an unknown processor'}; {libraries}"


def _best_phases(steps: list[dict[str, float]]) -> dict[str, float]:
    """The smallest number of seconds of each phase and of the whole step."""
    phases = {phase: min(step[phase] for step in steps) for phase in steps[0]}
    return phases | {"whole step": min(sum(step.values()) for step in steps)}


if __name__ == "__main__":
    main()
