"""Asks the user whether work may be set aside: by `--rerun`, or with a question on the terminal."""

import sys
from collections.abc import Collection, Sequence

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.node import nearest
from cascade_rl.rl_stages.run.upgrade.kept_folders import Changed, refuse

SAID = {
    "goes on": "{} (goes on from there)",
    "runs again": "set aside {}",
    "is taken back": "set aside {}, and the folder that was finished before is taken back",
}


def agree(cascade: Cascade, named: Collection[str], changed: Sequence[Changed]) -> None:
    """Raises UserError, before anything is set aside, unless each stage that must run again is `named` or confirmed."""
    _check_names(cascade, named, changed)
    left = [item for item in changed if item.fate == "runs again" and item.stage not in named]
    if left and not (sys.stdin.isatty() and _confirmed(left)):
        refuse(left)
    for item in changed:
        print(SAID[item.fate].format(item), flush=True)


def _check_names(cascade: Cascade, named: Collection[str], changed: Sequence[Changed]) -> None:
    known = [*(stage.name for stage in cascade.stages), *(item.stage for item in changed)]
    for name in named:
        if name not in known:
            raise UserError(f"--rerun: expected stages, found '{name}'. Did you mean '{nearest(name, known)}'?")


def _confirmed(left: Sequence[Changed]) -> bool:
    print("These stages have changed since they ran:", *(f"  {item}" for item in left), sep="\n")
    try:
        answer = input("Set them aside under superseded/ and run them again? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")
