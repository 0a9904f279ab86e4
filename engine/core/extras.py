"""Packages that only an extra of the wheel brings, asked for before they are imported."""

from importlib.util import find_spec

from cascade_rl.engine.core.errors import UserError


def require_extra(package: str, use: str, extra: str, otherwise: str = "") -> None:
    """Raises UserError, with what to install, if `package` cannot be imported.

    package     a module within one too
    use         what needs it
    extra       name of the wheel's extra, or "A or B"
    otherwise   what to do without it
    """
    if not _found(package):
        named = " or ".join(f"cascade-rl[{each}]" for each in extra.split(" or "))
        alternative = f", or {otherwise}" if otherwise else ""
        raise UserError(f"{use}: expected the package {package}, found none. Install {named}{alternative}.")


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it
        return False
