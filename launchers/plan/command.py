"""`cascade plan LAUNCHER.py [--hardware NAME] [--assume NAME=VALUE] [--json FILE] [key=value ...]`."""

import argparse
import json
import math
import runpy
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.user_modules import find_modules_of

if TYPE_CHECKING:
    from cascade_rl.rl_stages.config.cascade import Cascade


def _parser() -> argparse.ArgumentParser:
    description = "Estimates memory, time and storage of each stage without a GPU. Exit code 1 if a stage does not fit."
    parser = argparse.ArgumentParser(prog="cascade plan", description=description, allow_abbrev=False)
    parser.add_argument("launcher", type=Path, help="launcher file")
    parser.add_argument("--hardware", default="h100", metavar="NAME", help="GPU of hardware.toml (default: h100)")
    parser.add_argument(
        "--assume", action="append", default=[], metavar="NAME=VALUE", help="replace an assumption of hardware.toml"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the plan to FILE")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="override a key of the launcher file")
    return parser


def run(arguments: list[str]) -> int:
    """Exit code 1 if a stage does not fit."""
    options = _parser().parse_intermixed_args(arguments)
    from rich.console import Console

    from cascade_rl.launchers.plan.cascade_plan import plan_cascade
    from cascade_rl.launchers.plan.hardware import read_hardware
    from cascade_rl.launchers.plan.table import plain_text, print_plan
    from cascade_rl.rl_stages.config.text import override

    cascade = override(load_cascade(options.launcher), options.settings)
    plan = plan_cascade(cascade, *read_hardware(options.hardware, dict(map(_assumption, options.assume))))
    console = Console()
    if console.is_terminal:
        print_plan(plan, console)
    else:
        print(plain_text(plan), end="")
    if options.json:
        options.json.write_text(json.dumps(asdict(plan), indent=2, allow_nan=False) + "\n")
    return 0 if plan.fits else 1


def load_cascade(launcher: Path) -> "Cascade":
    """The cascade of a launcher file, without launching it. Raises UserError unless the file makes exactly one."""
    from cascade_rl.rl_stages.config.cascade import Cascade

    if not launcher.is_file():
        raise UserError(f"no such file: {launcher}")
    if launcher.suffix != ".py":
        raise UserError(f"expected a launcher file (LAUNCHER.py), found '{launcher}'")
    find_modules_of(launcher.resolve().parent)
    found = [value for value in runpy.run_path(str(launcher)).values() if isinstance(value, Cascade)]
    if len(found) != 1:
        raise UserError(f"{launcher}: expected one global variable with a Cascade, found {len(found)}")
    return found[0]


def _assumption(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        raise UserError(f"--assume: expected NAME=VALUE with a number, found '{text}'") from None
    if not 0 <= number < math.inf or (name.endswith("_share") and number > 1):
        known = "a share in [0, 1]" if name.endswith("_share") else "a number of 0 or more"
        raise UserError(f"--assume {name}: expected {known}, found {value}")
    return name, number
