"""A key of a cascade, with all that its class says of it."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.help.sentences import introduction, sentence
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.differences import default_of
from cascade_rl.rl_stages.config.node import nearest
from cascade_rl.rl_stages.config.text import children_of, split_null, words_of_type

# By the last word of a key's name.
UNITS = {"s": "seconds", "seconds": "seconds", "mib": "MiB", "steps": "steps", "tokens": "tokens", "budget": "tokens"}


@dataclass(frozen=True)
class Key:
    """One key.

    path     dotted, as a setting names it
    hint     its type
    value    what the launcher file gives
    default  what it is where nothing is given; MISSING: it must be given
    meaning  of its class's docstring
    """

    path: str
    hint: Any
    value: Any
    default: Any
    meaning: str

    @property
    def node(self) -> Any:
        """What holds the keys below this one: a node, or its class where it is null; None for a value."""
        if is_dataclass(self.value) or isinstance(self.value, Mapping):
            return self.value
        inner = split_null(self.hint)[0]
        return inner if is_dataclass(inner) else None

    @property
    def unit(self) -> str | None:
        return UNITS.get(self.path.rpartition("_")[2])


def find(cascade: Cascade, path: str) -> Key:
    """The key of that path, such as `if_rl.optimizer.lr`. Raises UserError that names the nearest one."""
    key = Key("", Cascade, cascade, MISSING, "")
    for name in path.split("."):
        below = {each.path.rpartition(".")[2]: each for each in keys_below(key)}
        if name not in below:
            known = [each.path for each in below.values()] or [key.path]
            raise UserError(f"Unknown key '{path}'. Did you mean '{nearest(path, known)}'?")
        key = below[name]
    return key


def keys_below(key: Key) -> Iterator[Key]:
    """The keys of a node, in the order of its class."""
    prefix = f"{key.path}." if key.path else ""
    for name, (value, hint) in children_of(key.node).items():
        yield Key(f"{prefix}{name}", hint, value, _default(key, name), _meaning(key.node, name))


def in_words(hint: Any) -> str:
    """A type for a reader: "a whole number, or null"."""
    hint, nullable = split_null(hint)
    return _in_words(hint) + ", or null" * nullable


def as_typed(value: Any) -> str:
    """A value as `key=value` takes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return ",".join(map(as_typed, value))
    return str(value)


def _in_words(hint: Any) -> str:
    origin, options = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, options))}"
    if origin is tuple:
        return f"a list, each {_in_words(options[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return f"a table, each {'value' if options[1] is Any else _in_words(options[1])}"
    return "keys of its own" if is_dataclass(hint) or hint is dict else words_of_type(hint)


def _default(owner: Key, name: str) -> Any:
    if is_dataclass(owner.default) and hasattr(owner.default, name):
        return getattr(owner.default, name)
    items = fields(owner.node) if is_dataclass(owner.node) else ()
    return next((default_of(item) for item in items if item.name == name), MISSING)


def _meaning(node: Any, name: str) -> str:
    """Of a stage what its class is for, of a field its sentence, of an entry of a table nothing."""
    if isinstance(node, Cascade) and name in [stage.name for stage in node.stages]:
        return introduction(type(node.stage(name))).partition(". ")[0]
    if not is_dataclass(node):
        return ""
    return sentence(node if isinstance(node, type) else type(node), name)
