"""A user's own modules, outside of this package: those beside a launcher file, and what is found in them by name."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.errors import UserError


def find_modules_of(folder: Path) -> None:
    """Makes the modules beside a launcher file importable here and, by PYTHONPATH, in all processes of its run. Those
    of a package have their names in it."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if not (folder / "__init__.py").exists() and str(folder) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (*paths, str(folder))))
        sys.path.append(str(folder))


def imported(target: str, asked: str) -> Any:
    """What `module:NAME` names. Runs the module's code, and lets its exceptions out.

    Raises UserError, which begins with `asked`, for another form, a module that is not found, and one without the name.
    """
    module, colon, name = target.partition(":")
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise UserError(f"{asked}: expected MODULE:NAME; found {target!r}")
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"{asked}: expected the module {module!r} beside the launcher file, installed or on PYTHONPATH; found it "
            "nowhere there. Put it there, or set PYTHONPATH to its folder"
        ) from None
    if not hasattr(found, name):
        raise UserError(f"{asked}: expected {name!r} in {found.__file__}; found no such name")
    return getattr(found, name)
