"""`cascade swe-import`: makes rows of published SWE instances and their checkouts, and names those that it cannot."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from cascade_rl.engine.core.errors import UserError

if TYPE_CHECKING:
    from cascade_rl.rl_stages.swe_tasks.localisation import Localisation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rows", help="published rows: a file, a folder or hf:owner/name")
    parser.add_argument("checkouts", type=Path, help="folder with a checkout of each row, CHECKOUTS/INSTANCE_ID")
    parser.add_argument("out", type=Path, help=".jsonl file to write")
    noise = "second prompt of an agentless row: golden files and noise, up to N tokens (default: the retrieved files)"
    parser.add_argument("--noise", type=int, metavar="N", help=noise)
    tokens = "model folder with the tokenizer that counts the N tokens"
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER", help=tokens)


def run(options: argparse.Namespace) -> int:
    """Exit code 1 if no row could be imported."""
    from cascade_rl.launchers.report.left_out import show
    from cascade_rl.rl_stages.data.sift import Report, replacing
    from cascade_rl.rl_stages.swe_tasks.import_rows import import_rows

    report = Report()
    second = _second(options.noise, options.tokenizer)
    with replacing(options.out) as file:
        for row in import_rows(options.rows, options.checkouts, options.domain, report, second):
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    made, left = report.kept.total(), report.dropped.total()
    show(report, f"{options.out}: {made:,} rows of {options.domain}; {left:,} published rows left out", "left out")
    return 0 if made else 1


def _second(noise: int | None, tokenizer: Path | None) -> "Localisation":
    from cascade_rl.rl_stages.swe_tasks.localisation import GoldenAndNoise, retrieved_files

    if noise is None and tokenizer is None:
        return retrieved_files
    if noise is None or tokenizer is None:
        raise UserError("expected --noise N and --tokenizer FOLDER together, or neither; found one of them")
    from cascade_rl.rl_stages.data.prompt_length import token_counter

    count = token_counter(tokenizer)
    return GoldenAndNoise(noise, lambda prompt: count([{"role": "user", "content": prompt}], ()))
