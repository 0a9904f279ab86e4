"""Starts the ranks of `first_step` on one card or two, and says which of its checks failed."""

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

from cascade_rl.engine.backend import cards
from cascade_rl.engine.core.settings import ParallelConfig, Precision, RolloutConfig
from cascade_rl.launchers.card.tiny_model import write_config
from cascade_rl.launchers.local.run_local import Ranks
from cascade_rl.launchers.stage.log_tail import log_tail

LIMIT_S = 900.0  # for all three checks: vLLM compiles, and a hang must end
# On two cards every kind of group that a stage's layout has is there but pipeline and context.
LAYOUTS = {1: ParallelConfig(), 2: ParallelConfig(tensor=2, expert=2, sequence=True)}
PROBE_BOUND: dict[Precision, float] = {"float32": 2e-3, "bfloat16": 0.1}
STEPS = {
    "step": "a model of five layers takes three optimizer steps, and its loss falls",
    "refit": "vLLM starts, sleeps and wakes, gets the trainer's weights, and scores with them",
    "generation": "vLLM samples, and the trainer agrees with the log-prob of every token",
}


def codes(ranks: int) -> dict[str, int]:
    """The exit code of each of STEPS: 21, 22 and 23 on one card, 31, 32 and 33 on two."""
    return {name: 10 * (ranks + 1) + number for number, name in enumerate(STEPS, 1)}


def first_failure(ranks: int, precision: Precision) -> int | None:
    """The code of the first of STEPS that fails; those after it are not made."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        how = _start(folder, ranks, precision)
        passed = (folder / "passed").read_text().split()
        # ranks may still fail after the last check, when they leave each other
        failed = next((name for name in STEPS if name not in passed), how and "generation")
        if failed:
            print(f"{failed}: FAILED ({codes(ranks)[failed]}): {how}{_log(folder / 'engine.log')}", flush=True)
    return codes(ranks)[failed] if failed else None


def _start(folder: Path, ranks: int, precision: Precision) -> str:
    """Runs the ranks, and returns how the first that failed ended."""
    work = json.dumps(_work(folder, ranks, precision))
    command = [sys.executable, "-m", "cascade_rl.launchers.card.first_step", work]
    with open(os.devnull, "rb") as nothing, Ranks(command, ranks, folder, nothing.fileno()) as processes:
        limit = Timer(LIMIT_S, processes.stop)
        limit.start()
        failure = processes.wait()
        limit.cancel()
    return failure.describe(folder) if failure else ""


def _work(folder: Path, ranks: int, precision: Precision) -> dict[str, object]:
    """The work of a rank as JSON."""
    (folder / "passed").touch()
    write_config(folder, precision)
    rollout = RolloutConfig(
        dtype=precision,
        max_model_len=128,
        max_num_seqs=8,
        probe_bound=PROBE_BOUND[precision],
        checksum="digests",
        checksum_every=1,
        sleep=bool(cards.count()),
    )
    return {
        "folder": str(folder),
        "parallel": asdict(replace(LAYOUTS[ranks], precision=precision)),
        "rollout": asdict(rollout),
    }


def _log(path: Path) -> str:
    tail = log_tail(path) if path.exists() else ""
    return f"\nThe end of the engine's log:\n{tail}" if tail else ""
