"""`nemo-run LAUNCHER.py --rehearse`: the whole cascade of a launcher, made small, on this machine."""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from cascade_rl.launchers.local.inputs import model_config
from cascade_rl.launchers.local.run_local import run_cascade
from cascade_rl.launchers.rehearse.first_rows import write_first_rows
from cascade_rl.launchers.rehearse.killing import KilledOnce
from cascade_rl.launchers.rehearse.published_rows import write_missing_rows
from cascade_rl.launchers.rehearse.rehearsal_table import rehearsal_table
from cascade_rl.launchers.rehearse.small_cascade import rule, small_cascade, total, victim
from cascade_rl.launchers.rehearse.small_model import (
    ENTRIES,
    cut_tokenizer,
    own_tokenizer,
    small_model,
    stand_in_tokenizer,
)
from cascade_rl.launchers.rehearse.stand_in_judge import stand_in_judge
from cascade_rl.launchers.rehearse.true_size import failures
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.upgrade.kept_folders import refuse

WIDTH = 150  # of the table, also in a log


def rehearse(cascade: Cascade, runs: Path, stage_command: Sequence[str]) -> int:
    """Plays every stage of `runs/<name>_rehearsal`, which replaces that of an earlier rehearsal. Returns its exit code.

    One stage is killed after its first step, and goes on from its checkpoint. Ends with a table: what ran, what the
    true sizes are, and what would fail first at these.
    """
    console, started = Console(highlight=False), time.monotonic()
    console.print(f"Rehearsal of {cascade.name}: {rule(cascade)}", soft_wrap=True)
    root = runs / f"{cascade.name}_rehearsal"
    inputs = root.with_name(f"{root.name}_inputs")
    for folder in (root, inputs):
        shutil.rmtree(folder, ignore_errors=True)
    base, measured, told = _small_bases(cascade, inputs)
    console.print(f"model: {told}", soft_wrap=True)
    missing, present = write_missing_rows(cascade, inputs), write_first_rows(cascade, inputs)
    console.print(
        f"data: the first rows of {len(present)} sources; for {len(missing)} that are not here, rows of their "
        "published schemas"
    )
    found = failures(cascade, measured, missing)
    _print_failures(found, console)
    with stand_in_judge() as url:
        small = small_cascade(cascade, base, {**present, **missing}, url)
        code = _play(small, runs, stage_command, console)
    Console(highlight=False, width=max(console.width, WIDTH)).print(
        rehearsal_table(cascade, RunFolder.open(root), found)
    )
    console.print(f"{(time.monotonic() - started) / 60:.1f} minutes; run folder: {root}", soft_wrap=True)
    return code


def _play(small: Cascade, runs: Path, stage_command: Sequence[str], console: Console) -> int:
    killed_stage = victim(small)
    position = small.stages.index(killed_stage) + 1
    folder = runs / small.name / "stages" / f"{position:02d}_{killed_stage.name}"
    with KilledOnce(folder / "checkpoints" / "step_00001") as killed:
        code = run_cascade(small, runs, stage_command, small.stages, refuse)
    if killed.done:
        console.print(
            f"{killed_stage.name} was killed on purpose, after its first checkpoint. The same command goes on:"
        )
        return run_cascade(small, runs, stage_command, small.stages, refuse)
    return code


def _small_bases(cascade: Cascade, inputs: Path) -> tuple[BaseModel, BaseModel, str]:
    """The base of the rehearsal, one with the whole tokenizer, with which prompts are measured, and a description."""
    if cascade.base.hf is None:
        return cascade.base, cascade.base, "that of the launcher, which is random too"
    named, own = cascade.base.chat_template, own_tokenizer(cascade.base)
    whole = own or stand_in_tokenizer(named, inputs / "tokenizer")
    played = own or cut_tokenizer(whole, inputs / "cut_tokenizer")
    config = small_model(model_config(cascade), _positions(cascade), None if own else ENTRIES)
    told = f"that of {own}" if own else f"Tekken stands in for the base's, played with its first {ENTRIES:,} entries"
    bases = (BaseModel(hf_config=config, tokenizer=str(folder), chat_template=named) for folder in (played, whole))
    return *bases, f"{_described(config)}; tokenizer: {told}"  # type: ignore[return-value]


def _positions(cascade: Cascade) -> int:
    longest = (max(cascade.layout(stage).rollout.max_model_len, stage.token_budget) for stage in cascade.stages)
    return total(max(longest))


def _described(config: dict) -> str:
    layers = config.get("hybrid_override_pattern", f"{config['num_hidden_layers']} layers")
    return f"{config['architectures'][0]} {layers}, width {config['hidden_size']}, {config['vocab_size']:,} entries"


def _print_failures(found: Mapping[str, Sequence[str]], console: Console) -> None:
    console.print("at true size, as far as this machine can tell:")
    for line in [line for lines in found.values() for line in lines] or ["nothing would fail"]:
        console.print(f"  {line}", soft_wrap=True)
