"""`cascade parity`: starts the ranks of a layout, waits for their parity certificate, and prints it.

`python -m cascade_rl.launchers.cli.parity JSON` is the command of a rank. Rank 0 writes the certificate.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict, fields, replace
from math import lcm
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cascade_rl.engine.core.settings import ParallelConfig, Precision, RolloutConfig
from cascade_rl.engine.models import check_layout, read_config
from cascade_rl.engine.parity.certificate import ROUNDED, Bounds
from cascade_rl.launchers.cli.dry_run import SIZES
from cascade_rl.launchers.stage.exit_status import exit_status

KV_CACHE_MIB, MAX_MODEL_LEN, MAX_NUM_SEQS = 256, 97, 8
BEYOND = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="Hugging Face model folder with a tokenizer")
    defaults = {field.name: field.default for field in fields(ParallelConfig)}
    for name in SIZES:
        option, size = "--" + name.replace("_", "-"), name.replace("_", " ")
        text = f"{size} parallel size (default: {defaults[name]})"
        parser.add_argument(option, type=int, default=defaults[name], metavar="N", help=text)
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="number of trainer ranks (default: the fewest for the layout)"
    )
    parser.add_argument(
        "--engine-tensor", type=int, default=1, metavar="N", help="tensor parallel workers of vLLM (default: 1)"
    )
    precision = f"of the trainer (default: {defaults['precision']})"
    parser.add_argument("--precision", choices=get_args(Precision), default=defaults["precision"], help=precision)
    parser.add_argument(
        "--engine-dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of vLLM (default: float32)"
    )
    parser.add_argument("--without", choices=("transformers", "vllm"), help="skip one that this machine cannot run")
    for option, unit, what, field in (
        ("--bound", "NATS", "gap of a log-prob; in bfloat16 of 99.9 %% of the tokens", "logprob"),
        ("--mean-bound", "NATS", "mean gap of a log-prob", "mean"),
        ("--tme-bound", "X", "mean of exp|gap|", "tme"),
    ):
        exact, rounded = (getattr(bounds, field) for bounds in (Bounds(), ROUNDED))
        text = f"largest allowed {what} (default: {rounded:g} if a side is in bfloat16, else {exact or 'none'})"
        parser.add_argument(option, dest=field, type=float, metavar=unit, help=text)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the certificate to FILE")


def run(options: argparse.Namespace) -> int:
    """Exit code 1 if a gap exceeds its bound; that of the failed rank if one fails."""
    sizes = {name: getattr(options, name) for name in SIZES}
    parallel = ParallelConfig(**sizes, sequence=options.tensor > 1, precision=options.precision)
    ranks = options.ranks or _fewest(parallel)
    check_layout(read_config(options.model), parallel, ranks)
    with TemporaryDirectory() as scratch:
        work = _work(options, parallel) | {"out": f"{scratch}/certificate.json"}
        code = _measure(work, ranks, Path(scratch))
        if code:
            return code
        told = json.loads(Path(work["out"]).read_text())
    if options.json:
        options.json.write_text(json.dumps(told, indent=2, allow_nan=False) + "\n")
    show(told, Console(highlight=False, soft_wrap=True))
    return BEYOND if told["failures"] else 0


def show(told: dict[str, Any], console: Console) -> None:
    """Prints the certificate as tables, and the verdict last."""
    cut = ", ".join(f"{name} {size}" for name, size in told["layout"].items() if name in SIZES and size > 1)
    console.print(f"{told['model']}: {told['tokens']} tokens, layout {cut or 'of one rank'}", style="bold")
    console.print(f"mean log-prob {_number(told['mean_logprob'], '.3f')}")
    console.print(_pairs(told))
    if told["replay_fraction"] is not None:
        console.print("refit: each slice of each weight in vLLM has the digest of the trainer's")
        console.print(f"fraction of vLLM's expert choices replayed in Megatron: {told['replay_fraction']:.4f}")
    if told["layers"]:
        console.print(_first_difference(told))
    console.print(_worst(told))
    for failure in told["failures"]:
        console.print(f"beyond the bounds: {failure}", style="red")
    if not told["failures"]:
        console.print("within the bounds", style="green")


def _fewest(parallel: ParallelConfig) -> int:
    dense = parallel.tensor * parallel.pipeline * parallel.context
    return lcm(dense, parallel.expert * parallel.expert_tensor * parallel.pipeline)


def _work(options: argparse.Namespace, parallel: ParallelConfig) -> dict[str, Any]:
    """The work of a rank as JSON."""
    rollout = RolloutConfig(
        tensor=options.engine_tensor,
        dtype=options.engine_dtype,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        kv_cache_mib=KV_CACHE_MIB,
    )
    return {
        "model": str(options.model),
        "parallel": asdict(parallel),
        "rollout": None if options.without == "vllm" else asdict(rollout),
        "transformers": options.without != "transformers",
        "bounds": asdict(bounds_of(options)),
    }


def bounds_of(options: argparse.Namespace) -> Bounds:
    """What the command line says, and otherwise what suits the dtypes that are compared."""
    dtypes = {options.precision} | ({options.engine_dtype} if options.without != "vllm" else set())
    given = {name: getattr(options, name) for name in ("logprob", "mean", "tme") if getattr(options, name) is not None}
    return replace(Bounds() if dtypes == {"float32"} else ROUNDED, **given)


def _measure(work: dict[str, Any], ranks: int, scratch: Path) -> int:
    """Runs the ranks. Returns their exit code."""
    from cascade_rl.launchers.local.run_local import Ranks  # it imports all verifiers, too slow for --help

    command = [sys.executable, "-m", "cascade_rl.launchers.cli.parity", json.dumps(work)]
    with open(os.devnull, "rb") as nothing, Ranks(command, ranks, scratch, nothing.fileno()) as processes:
        failure = processes.wait()
    if failure:
        print(failure.describe(scratch), file=sys.stderr)
    return failure.code if failure else 0


def _pairs(told: dict[str, Any]) -> Table:
    columns = {"max": "largest gap", "tail": "of 99.9 %", "mean": "mean gap"}
    table = Table("log-probs of the same tokens", *columns.values(), "mean exp|gap|")
    bounds = told["bounds"]
    for pair, gap in told["pairs"].items():
        table.add_row(pair, *(_number(gap[name], ".1e") for name in columns), _number(gap["tme"], ".7f"))
    single = f"{bounds['logprob']:.0e}"
    mean = "" if bounds["mean"] is None else f"{bounds['mean']:.0e}"
    table.add_section()
    table.add_row("bound", *((single, "") if bounds["exact"] else ("", single)), mean, f"{bounds['tme']:.7f}")
    return table


def _first_difference(told: dict[str, Any]) -> str:
    bound, first = told["bounds"]["layer"], told["first_difference"]
    if first:
        return (
            f"first layer that differs: {first['layer']}; there the hidden states of Megatron and transformers differ "
            f"by {_number(first['gap'], '.1e')} of their norm (more than {bound:.0e})"
        )
    largest = max(layer["gap"] for layer in told["layers"])
    return f"the hidden states at all {len(told['layers'])} points agree to {largest:.1e} of their norm"


def _worst(told: dict[str, Any]) -> Table:
    table = Table("worst tokens")
    for heading in ("gap", "pair", "log-probs"):
        table.add_column(heading, no_wrap=True)
    table.add_column("after")
    for token in told["worst"]:
        one, other = token["logprobs"]
        word, context = (escape(repr(token[name])) for name in ("token", "context"))
        logprobs = f"{_number(one, '.4f')}/{_number(other, '.4f')}"
        table.add_row(word, _number(token["gap"], ".1e"), token["pair"], logprobs, context)
    return table


def _number(value: float | None, form: str) -> str:
    """None stands for a number that is not finite."""
    return "not finite" if value is None else format(value, form)


def _rank(work: dict[str, Any]) -> int:
    """One rank of the layout."""
    import torch.distributed as dist

    from cascade_rl.engine.backend.process_groups import initialize_distributed
    from cascade_rl.engine.backend.ranks import is_rank0
    from cascade_rl.engine.parity.measure import SEED, certify, open_trainer

    folder, parallel = Path(work["model"]), ParallelConfig(**work["parallel"])
    rollout = RolloutConfig(**work["rollout"]) if work["rollout"] else None
    initialize_distributed(parallel, SEED)
    trainer = open_trainer(folder, parallel)
    bounds = Bounds(**work["bounds"])
    certificate = certify(trainer, folder, bounds, rollout=rollout, transformers=work["transformers"])
    if is_rank0():
        Path(work["out"]).write_text(json.dumps(certificate.plain(), allow_nan=False))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    from cascade_rl.engine.core.quiet_libraries import quiet_libraries

    quiet_libraries()
    sys.exit(exit_status("cascade parity", lambda: _rank(json.loads(sys.argv[1]))))
