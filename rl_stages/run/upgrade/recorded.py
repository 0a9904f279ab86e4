"""The configuration that a run was made with, as its folder records it in cascade.yaml and stage.yaml.

Guarantees: A file of an older schema number (`rl_stages/config/schema.py`) is read with today's keys. An unknown key is
reported, whereas a launch would refuse it.
"""

import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from cascade_rl.rl_stages.config import schema
from cascade_rl.rl_stages.config.cascade import Cascade, stage_class
from cascade_rl.rl_stages.config.differences import default_of
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.config.text import changes, from_plain, leaves, read_yaml, split_null, to_plain, to_yaml
from cascade_rl.rl_stages.run.stage_graph import NOT_HASHED

NUMBER = "schema"


def recorded_yaml(node: Cascade | Stage) -> str:
    return f"{NUMBER}: {schema.current()}\n{to_yaml(node)}"


def read_cascade(path: Path) -> Cascade:
    """The cascade of a file. Reports unknown keys on stderr. Raises UserError if the values are not a valid cascade."""
    reader = Reader.of(path)
    cascade = from_plain(reader.read(reader.plain, Cascade))
    for key, value in reader.unknown.items():
        print(f"warning: {path}: unknown key '{key}', which is {value!r} there, is ignored", file=sys.stderr)
    return cascade


def changed_keys(path: Path, node: Cascade | Stage) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The keys whose values in a file of a run folder differ from those of `node`, each with (old, new)."""
    hint, prefix = (Stage, f"{node.name}.") if isinstance(node, Stage) else (Cascade, "")
    reader = Reader.of(path)
    found = leaves(reader.read(reader.plain, hint), prefix) | reader.unknown | reader.lost
    return changes(found, leaves(to_plain(node), prefix))


def changed_settings(folder: Path, stage: Stage, beside: Collection[str] = ()) -> list[tuple[str, tuple[Any, Any]]]:
    """The changed keys of a stage folder that are hashed, each with (old, new), without the keys `beside`."""
    left_out = (*NOT_HASHED, *beside)
    found = ((key, key.partition(".")[2], values) for key, values in changed_keys(folder / "stage.yaml", stage))
    return [(key, values) for key, own, values in found if not {own, own.partition(".")[0]}.intersection(left_out)]


@dataclass
class Reader:
    """Converts plain nodes of schema number `since` to today's keys. Keys that are not given get their values of then.

    unknown  keys that exist neither today nor in the table, with their values
    lost     retired keys whose value is not the one that every run has had since
    """

    plain: Any
    since: int
    unknown: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> "Reader":
        plain = read_yaml(path)
        return cls(plain, plain.pop(NUMBER, 0))

    def read(self, value: Any, hint: Any, prefix: str = "") -> Any:
        """Converts `value`: a node of type `hint`, or a list or mapping of nodes. Reported keys start with `prefix`."""
        hint, _ = split_null(hint)
        if is_dataclass(hint) and isinstance(value, dict):
            return self._read_node(value, hint, prefix)
        if get_origin(hint) is tuple and isinstance(value, list):
            return [self.read(item, get_args(hint)[0], prefix) for item in value]
        if get_origin(hint) is Mapping and isinstance(value, dict):
            return {key: self.read(item, get_args(hint)[1], f"{prefix}{key}.") for key, item in value.items()}
        return value

    def _read_node(self, value: dict[str, Any], cls: Any, prefix: str) -> dict[str, Any]:
        if cls is Stage:
            cls, prefix = stage_class(str(value.get("kind"))) or cls, f"{value.get('name')}."
        owners, hints = schema.owners_of(cls), get_type_hints(cls)
        given, retired = {}, schema.retired(owners)
        for key, item in value.items():
            name = schema.todays_name(owners, key, self.since)
            if name in hints:
                given[name] = self.read(item, hints[name], f"{prefix}{name}.")
            elif name not in retired:
                self.unknown[prefix + key] = item
            elif item != retired[name]:
                self.lost[prefix + key] = item
        return given | self._not_given(cls) | given

    def _not_given(self, cls: Any) -> dict[str, Any]:
        """The values of a node's keys if they are not given."""
        values = {item.name: self._default(cls, item) for item in fields(cls)}
        return {name: to_plain(value) for name, value in values.items() if value is not MISSING}

    def _default(self, cls: Any, item: Field[Any]) -> Any:
        older = schema.older_default(schema.owners_of(cls), item.name, self.since)
        return default_of(item) if older is MISSING else older
