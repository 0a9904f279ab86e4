"""The values of a configuration node that are not defaults: the part of it that is hashed.

Guarantees: the result for a node whose meaning has not changed stays the same if a field is added with a default, or if
a field is renamed or gets another default and this is in the table of `rl_stages/config/schema.py`.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from cascade_rl.rl_stages.config import schema


def differences(node: Any, default: Any = None, within: tuple[str, ...] = ()) -> dict[str, Any]:
    """Plain form of the values that differ from the first default of their key, by the key's first name.

    default   the node to compare with; None: the defaults of the node's class
    within    names that the table may use for the node by its position, such as "GrpoStage.optimizer"
    """
    owners = (*within, *schema.owners_of(type(node)))
    found = {}
    for item in fields(node):
        value, usual = getattr(node, item.name), _first_default(item, default, owners)
        place = tuple(f"{owner}.{item.name}" for owner in owners)
        plain = _plain(value, usual if is_dataclass(usual) else None, place)
        if plain if is_dataclass(usual) and is_dataclass(value) else value != usual:
            found[schema.first_name(owners, item.name)] = plain
    return found | _retired(owners)


def _first_default(item: Field[Any], default: Any, owners: tuple[str, ...]) -> Any:
    """The first default of a key; MISSING if it has none."""
    older = schema.older_default(owners, item.name)
    if older is not MISSING:
        return older
    return getattr(default, item.name, default_of(item))


def default_of(item: Field[Any]) -> Any:
    """The default of a field; MISSING if it has none."""
    return item.default if item.default_factory is MISSING else item.default_factory()


def _retired(owners: tuple[str, ...]) -> dict[str, Any]:
    held = {name: (value, schema.older_default(owners, name)) for name, value in schema.retired(owners).items()}
    return {
        schema.first_name(owners, name): value for name, (value, first) in held.items() if first not in (MISSING, value)
    }


def _plain(value: Any, default: Any, place: tuple[str, ...]) -> Any:
    if is_dataclass(value):
        return differences(value, default, place)
    if isinstance(value, Mapping):
        return {key: _plain(item, None, place) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, None, place) for item in value]
    return value
