"""JSON, YAML, XML, TOML and CSV texts as plain JSON values, within limits.

Refused, although the standard parsers accept them, are duplicate keys, NaN and infinities, YAML aliases (an alias
bomb parses in no time and then hangs whoever walks it), document types and with them entities, rows whose length
differs from the header's, and anything deeper, larger or longer than the limits below. YAML has the types of YAML
1.2's core schema, so its dates stay text; dates in TOML become ISO text. Parsing is CPU-bound: call it in a worker.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import re
import tomllib
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, NoReturn
from xml.etree import ElementTree

import yaml

MAX_CHARACTERS = 200_000
MAX_DEPTH = 64
MAX_NODES = 50_000
MAX_INTEGER_BITS = 1024  # the range of a double
_YAML_TAG = "tag:yaml.org,2002:"


class Malformed(ValueError):
    """The text is not a document of its format, or is beyond the limits."""


def parse_document(kind: str, text: str) -> Any:
    """The value of `text`, read as `kind`, a key of PARSERS. XML gives {root tag: content}, CSV a list of rows.

    Raises Malformed. Leaves of XML and CSV are text, or None if an XML element is empty.
    """
    if len(text) > MAX_CHARACTERS:
        raise Malformed(f"{len(text)} characters, more than {MAX_CHARACTERS}")
    try:
        return _plain(PARSERS[kind](text), 0, [0])
    except (ValueError, yaml.YAMLError, ElementTree.ParseError, csv.Error, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise Malformed(f"no {kind.upper()} document: {type(error).__name__}: {reason}") from None


def _plain(value: Any, depth: int, nodes: list[int]) -> Any:
    nodes[0] += 1
    if depth > MAX_DEPTH or nodes[0] > MAX_NODES:
        raise Malformed(f"deeper than {MAX_DEPTH} levels or more than {MAX_NODES} values")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise Malformed("a key that is not text")
        return {key: _plain(item, depth + 1, nodes) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, depth + 1, nodes) for item in value]
    return _plain_leaf(value)


def _plain_leaf(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise Malformed("a number that is not finite")
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise Malformed(f"an integer of more than {MAX_INTEGER_BITS} bits")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise Malformed(f"a value that JSON has not: {type(value).__name__}")


def _unique[K: Hashable](pairs: list[tuple[K, Any]]) -> dict[K, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise Malformed("a key twice in one object")
    return unique


def _refuse_constant(name: str) -> NoReturn:
    raise Malformed(f"{name} is no JSON number")


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the core schema of YAML 1.2 alone. It refuses aliases and repeated keys.

    PyYAML reads YAML 1.1, where `on` is true, `12:30` is 750, `1e3` is text and `017` is 15. A key is the text that was
    written, since JSON has no others.
    """

    yaml_constructors: ClassVar[dict[str | None, Callable[[Any, Any], Any]]] = {
        tag: yaml.SafeLoader.yaml_constructors[tag]
        for tag in (None, *(f"{_YAML_TAG}{name}" for name in ("str", "seq", "map")))
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise Malformed("a YAML alias")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        if not all(isinstance(key, yaml.ScalarNode) for key, _ in node.value):
            raise Malformed("a key that is not text")
        pairs: list[tuple[Hashable, Any]] = [
            (key.value, self.construct_object(value, deep)) for key, value in node.value
        ]
        return _unique(pairs)


_Loader.yaml_implicit_resolvers = {}


def _yaml_scalar(name: str, pattern: str, first: str, value: Callable[[str], Any]) -> None:
    """Reads a scalar that matches `pattern`, and so begins with one of `first`, by `value`; or one tagged `name`."""
    tag, compiled = _YAML_TAG + name, re.compile(rf"(?:{pattern})\Z")

    def construct(loader: _Loader, node: yaml.ScalarNode) -> Any:
        text = loader.construct_scalar(node)
        if not compiled.match(text):
            raise Malformed(f"a value that is no {name}")
        return value(text)

    _Loader.add_constructor(tag, construct)
    _Loader.add_implicit_resolver(tag, compiled, [*first, ""] if compiled.match("") else list(first))


_yaml_scalar("null", "~|null|Null|NULL|", "~nN", lambda _: None)
_yaml_scalar("bool", "true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text[0] in "tT")
_yaml_scalar("int", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789", lambda text: int(text, _base(text)))
_yaml_scalar(
    "float",
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "-+.0123456789",
    lambda text: float(re.sub(r"\.(?=[inIN])", "", text)),
)


def _base(text: str) -> int:
    """Of a YAML integer: 10, unless its prefix says otherwise."""
    return {"0o": 8, "0x": 16}.get(text[:2], 10)


def _yaml(text: str) -> Any:
    return yaml.load(text, _Loader)


class _Builder(ElementTree.TreeBuilder):
    """Builds elements. It refuses document types and deep nesting."""

    depth = 0

    def doctype(self, *_: object) -> NoReturn:
        raise Malformed("a document type")

    def start(self, tag: str, attrs: dict[str, str], /) -> ElementTree.Element:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Malformed(f"deeper than {MAX_DEPTH} levels")
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> ElementTree.Element:
        self.depth -= 1
        return super().end(tag)


def _xml(text: str) -> Any:
    root = ElementTree.fromstring(text.strip(), ElementTree.XMLParser(target=_Builder()))
    return {root.tag: _content(root)}


def _content(element: ElementTree.Element) -> Any:
    """As in xmltodict: text, or a dictionary with `@attribute` and `#text`; repeated children make a list."""
    value: dict[str, Any] = {f"@{name}": text for name, text in element.attrib.items()}
    for child in element:
        value.setdefault(child.tag, []).append(_content(child))
    value = {name: item[0] if isinstance(item, list) and len(item) == 1 else item for name, item in value.items()}
    text = "".join([element.text or "", *(child.tail or "" for child in element)]).strip()
    if not value:
        return text or None
    return value | ({"#text": text} if text else {})


def _csv(text: str) -> list[dict[str, str]]:
    rows = [row for row in csv.reader(io.StringIO(text), strict=True) if row]
    header = rows[0] if rows else []
    if len(set(header)) != len(header):
        raise Malformed("a column twice in the header")
    if not all(len(row) == len(header) for row in rows):
        raise Malformed("a row of another length than the header's")
    return [dict(zip(header, row, strict=True)) for row in rows[1:]]


PARSERS: dict[str, Callable[[str], Any]] = {
    "json": _json,
    "yaml": _yaml,
    "xml": _xml,
    "toml": tomllib.loads,
    "csv": _csv,
}
