"""The configuration tree as text: YAML, and `key=value` settings of a command line.

Values are checked against the types of `rl_stages/config/cascade.py`: an unknown key, a missing key and a value of the
wrong type are UserErrors that name the key. In the plain form a stage has a `kind` key, and settings address it by
its name.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.passed_fields import PassedFields
from cascade_rl.rl_stages.config.cascade import STAGE_KINDS, Cascade, stage_class
from cascade_rl.rl_stages.config.node import nearest
from cascade_rl.rl_stages.config.stage import Stage


def to_plain(node: Any) -> Any:
    """The tree as dicts, lists and scalars."""
    if is_dataclass(node):
        kind = {"kind": node.kind} if isinstance(node, Stage) else {}
        return kind | {item.name: to_plain(getattr(node, item.name)) for item in fields(node)}
    if isinstance(node, Mapping):
        return {key: to_plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [to_plain(value) for value in node]
    return node


def to_yaml(node: Any) -> str:
    """A tree, or a part of one, as YAML text."""
    return yaml.safe_dump(to_plain(node), sort_keys=False, width=110)


def from_plain(plain: Any) -> Cascade:
    """The typed tree. Raises UserError for an unknown or missing key and for a value of the wrong type."""
    return _read(plain, Cascade, "cascade")


def read_node[T](plain: Any, cls: type[T], where: str) -> T:
    """A typed node of another tree, such as a cluster's profile. Raises UserError as `from_plain` does."""
    return _read_node(plain, cls, where)


def read_yaml(path: Path) -> Any:
    """Plain form of a YAML file that `to_yaml` wrote."""
    return yaml.safe_load(path.read_text())


def leaves(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every settable key of the plain form with its value, dotted; a stage's keys start with its name."""
    found: dict[str, Any] = {}
    for key, value in plain.items():
        if key == "stages" and not prefix:
            for stage in value:
                found |= leaves(stage, f"{stage['name']}.")
        elif isinstance(value, Mapping):
            found |= leaves(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The keys of `leaves` whose values differ, with both; "absent" where there is no such key."""
    for key in {**old, **new}:
        values = old.get(key, "absent"), new.get(key, "absent")
        if values[0] != values[1]:
            yield key, values


def override(cascade: Cascade, settings: Sequence[str]) -> Cascade:
    """The tree with `key=value` settings applied, all at once: `seed=2`, `rollout.max_num_seqs=32`,
    `if_rl.optimizer.lr=1e-3`, `evaluation.domains=math,instruction_following` (a tuple is comma-separated),
    `base.hf=null`. Setting a key of a node that is null, such as `if_rl.parallel.tensor=2`, fills its other keys with
    the values that the stage would use otherwise: those of its hardware's layout, of the cascade, or the defaults."""
    plain = to_plain(cascade)
    known, stages = leaves(plain), {stage.name for stage in cascade.stages}
    for setting in sorted(settings, key=lambda text: text.partition(".")[0] in stages):  # they may need the cascade's
        key, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"Expected a setting key=value, found '{setting}'.")
        hint = _hint(cascade, key.split("."))
        if hint is None:
            raise UserError(f"Unknown key '{key}'. Did you mean '{nearest(key, known)}'?")
        _place(plain, cascade, key.split("."), _parse(text, hint, key))
    return from_plain(plain)


def _hint(node: Any, path: Sequence[str]) -> Any:
    """Type of the value at `path`; None if there is no such key."""
    head, *rest = path
    owner = node if isinstance(node, type) else type(node)
    if issubclass(owner, PassedFields):
        owner.check_name(head)
    children = children_of(node)
    if head not in children:
        return None
    child, hint = children[head]
    return _hint(split_null(hint)[0] if child is None else child, rest) if rest else hint


def split_null(hint: Any) -> tuple[Any, bool]:
    """The type of a value that is there, and whether null may be in its place."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return options[0], NoneType in options


def children_of(node: Any) -> dict[str, tuple[Any, Any]]:
    """Keys of a node with value and type; those of a class, which stands for a null node, with its defaults."""
    if isinstance(node, Mapping):
        return {key: (value, type(value)) for key, value in node.items()}
    if not is_dataclass(node):
        return {}
    hints = get_type_hints(node if isinstance(node, type) else type(node))
    children = {item.name: (getattr(node, item.name, None), hints[item.name]) for item in fields(node)}
    if isinstance(node, Cascade):
        del children["stages"]
        children |= {stage.name: (stage, type(stage)) for stage in node.stages}
    return children


def _place(plain: Any, cascade: Cascade, path: Sequence[str], value: Any) -> None:
    (head, *rest), shared = path, plain
    names = [stage.name for stage in cascade.stages]
    if head in names:
        shared = plain["layouts"].get(plain["hardware"], {}).get(head, plain)
        plain, path = plain["stages"][names.index(head)], rest
    *owners, last = path
    for owner in owners:
        if plain[owner] is None:
            plain[owner] = dict(shared.get(owner) or {})
        plain = plain[owner]
    plain[last] = value


def _expected(where: str, expected: str, found: object) -> UserError:
    return UserError(f"{where}: expected {expected}, found {found!r}.")


def words_of_type(hint: Any) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(hint, str(hint))


def _parse(text: str, hint: Any, where: str) -> Any:
    """Plain form of a value typed by a person; `_read` checks it later."""
    hint, nullable = split_null(hint)
    origin, options = get_origin(hint), get_args(hint)
    if nullable and text == "null":
        return None
    if origin is tuple:
        items = text.split(",") if text else []
        return [_parse(item, options[0], where) for item in items]
    if hint is str or origin is Literal:
        return text
    if hint is bool and text in ("true", "false"):
        return text == "true"
    if hint in (int, float):
        return _parse_number(text, hint, where)
    if hint is bool:
        raise _expected(where, words_of_type(hint), text)
    raise UserError(f"{where} holds other keys or a list of them: set one of those, or change the launcher file.")


def _parse_number(text: str, hint: type[int] | type[float], where: str) -> int | float:
    try:
        return hint(text)
    except ValueError:
        raise _expected(where, words_of_type(hint), text) from None


def _read(value: Any, hint: Any, where: str) -> Any:
    hint, nullable = split_null(hint)
    origin, options = get_origin(hint), get_args(hint)
    if nullable and value is None:
        return None
    if is_dataclass(hint):
        return _read_node(value, hint, where)
    if origin is tuple:
        return _read_tuple(value, options, where)
    if origin is Literal:
        if value not in options:
            raise _expected(where, f"one of {', '.join(map(str, options))}", value)
        return value
    if origin is Mapping:
        if not isinstance(value, dict):
            raise _expected(where, "a mapping", value)
        _, item = options
        return value if item is Any else {key: _read(found, item, f"{where}.{key}") for key, found in value.items()}
    return _read_scalar(value, hint, where)


def _read_scalar(value: Any, hint: type, where: str) -> Any:
    accepted = (int, float) if hint is float else (hint,)
    if type(value) not in accepted or (hint is float and not math.isfinite(value)):
        raise _expected(where, words_of_type(hint), value)
    return hint(value)


def _read_tuple(value: Any, options: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    many = options[-1] is Ellipsis
    if not isinstance(value, list) or not (many or len(value) == len(options)):
        raise _expected(where, "a list" if many else f"a list of {len(options)}", value)
    hints = options[:1] * len(value) if many else options
    return tuple(_read(item, hint, f"{where}[{i}]") for i, (item, hint) in enumerate(zip(value, hints, strict=True)))


def _read_node(value: Any, cls: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _expected(where, f"the keys of {cls.__name__}", value)
    if cls is Stage:
        value = dict(value)
        kind = value.pop("kind", None)
        cls = stage_class(str(kind)) or _read(kind, Literal[*STAGE_KINDS], f"{where}.kind")  # which refuses it
        where = str(value.get("name", where))
    hints = get_type_hints(cls)
    known = {item.name: item for item in fields(cls)}
    for key in value:
        if issubclass(cls, PassedFields):
            cls.check_name(key)
        if key not in known:
            raise UserError(f"Unknown key '{where}.{key}'. Did you mean '{where}.{nearest(key, known)}'?")
    for key, item in known.items():
        if key not in value and item.default is MISSING and item.default_factory is MISSING:
            raise UserError(f"{where}: key '{key}' is missing.")
    inner = "" if cls is Cascade else f"{where}."
    return cls(**{key: _read(item, hints[key], f"{inner}{key}") for key, item in value.items()})
