"""Reads the text leaves of XML and CSV as the values that a schema asks for.

A leaf is whatever the schema of its place accepts of the text itself, a number, a truth value, null or, in CSV, a list
or an object written in JSON. Where a schema has a choice (`anyOf`, `oneOf`, a condition), the first branch in which the
whole value is valid says how its leaves are read (NVIDIA-NeMo/Gym#1233).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any

from cascade_rl.rl_stages.rewards.verifiers.structured.documents import Malformed, parse_document
from cascade_rl.rl_stages.rewards.verifiers.structured.schema_validator import schema_validator

MAX_VIEWS = 64
_INTEGER = re.compile(r"[+-]?[0-9]{1,300}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,300}(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

View = Sequence[Mapping[str, Any]]  # schemas without a choice, all of one place


class TextLeaves:
    """Reads documents of one strict schema, whose references are all to its own `$defs`."""

    def __init__(self, kind: str, schema: Mapping[str, Any]) -> None:
        self._xml = kind == "xml"
        self._schema = schema
        self._validator = schema_validator(schema)
        self._views: dict[int, list[View]] = {}
        self._joined: dict[tuple[int, ...], Any] = {}  # keeps the schemas alive whose ids are keys
        self._read: dict[tuple[int, int], Any] = {}

    def typed(self, document: Any) -> Any:
        """`document` with its leaves read. A leaf that the schema accepts in no reading stays text."""
        return self._typed(document, self._schema)

    def names(self) -> set[str]:
        """The properties that the schema names for the document itself."""
        return {name for view in self._views_of(self._schema) for each in view for name in each.get("properties", ())}

    def is_list(self) -> bool:
        """Whether the schema describes the document itself as a list."""
        return any(_is_array(each) for view in self._views_of(self._schema) for each in view)

    def _typed(self, value: Any, schema: Any) -> Any:
        if isinstance(value, str) and isinstance(schema, dict) and schema.get("type") == "string":
            return value
        key = id(value), id(schema)
        if key not in self._read:
            self._read[key] = self._first_valid(list(self._readings(value, schema)), value, schema)
        return self._read[key]

    def _first_valid(self, readings: list[Any], value: Any, schema: Any) -> Any:
        if len(readings) == 1:
            return readings[0]
        validator = self._validator.evolve(schema=schema)
        return next((reading for reading in readings if validator.is_valid(reading)), value)

    def _readings(self, value: Any, schema: Any) -> Iterator[Any]:
        if value is None or isinstance(value, str):
            yield from _scalars(value, json=not self._xml)
        for view in self._views_of(schema):
            if isinstance(value, Mapping):
                yield {name: self._typed(item, self._property(view, name)) for name, item in value.items()}
            for items in self._lists(value) if any(map(_is_array, view)) else ():
                yield [self._typed(item, self._item(view, index)) for index, item in enumerate(items)]
        if isinstance(value, list):
            yield value

    def _lists(self, value: Any) -> Iterator[list[Any]]:
        """The lists that an element may stand for: its repeated children `{"item": [..]}`, or itself."""
        if isinstance(value, list):
            yield value
        elif self._xml and value is not None:
            if isinstance(value, Mapping) and len(value) == 1:
                inner = next(iter(value.values()))
                yield inner if isinstance(inner, list) else [inner]
            yield [value]

    def _views_of(self, schema: Any) -> list[View]:
        if not isinstance(schema, dict):
            return [()]
        if id(schema) not in self._views:
            self._views[id(schema)] = list(islice(self._expanded(schema, frozenset()), MAX_VIEWS))
        return self._views[id(schema)]

    def _expanded(self, schema: Any, seen: frozenset[str]) -> Iterator[View]:
        """Every choice of branches of `schema`, which `$ref` and `allOf` make longer."""
        if not isinstance(schema, dict):
            yield ()
            return
        parts: list[list[View]] = [[(schema,)]]
        reference = schema.get("$ref")
        if reference is not None and reference not in seen:
            definition = self._schema["$defs"][reference.removeprefix("#/$defs/")]
            parts.append(list(islice(self._expanded(definition, seen | {reference}), MAX_VIEWS)))
        for branches in _choices(schema):
            views = (view for branch in branches for view in self._expanded(branch, seen))
            parts.append(list(islice(views, MAX_VIEWS)))
        for chosen in product(*parts):
            yield tuple(each for view in chosen for each in view)

    def _property(self, view: View, name: str) -> Any:
        found = [each for schema in view for each in _schemas_of(schema, name)]
        return self._all_of(found)

    def _item(self, view: View, index: int) -> Any:
        prefixes = [schema.get("prefixItems", ()) for schema in view]
        found = [
            prefix[index] if index < len(prefix) else schema.get("items")
            for schema, prefix in zip(view, prefixes, strict=True)
        ]
        return self._all_of([each for each in found if isinstance(each, dict)])

    def _all_of(self, schemas: list[Any]) -> Any:
        if len(schemas) == 1:
            return schemas[0]
        return self._joined.setdefault(tuple(map(id, schemas)), {"allOf": schemas} if schemas else {})


def _choices(schema: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    """Of each part of `schema` for its own place, the branches of which one is chosen."""
    yield from ([each] for each in schema.get("allOf", ()))
    yield from (schema[name] for name in ("anyOf", "oneOf") if name in schema)
    if "then" in schema or "else" in schema:
        yield [schema.get("then"), schema.get("else")]
    yield from ([each] for each in schema.get("dependentSchemas", {}).values())


def _schemas_of(schema: Mapping[str, Any], name: str) -> list[Any]:
    """The schemas that say what the property `name` is."""
    named = [schema["properties"][name]] if name in schema.get("properties", ()) else []
    named += [each for pattern, each in schema.get("patternProperties", {}).items() if re.search(pattern, name)]
    return named or [each for each in [schema.get("additionalProperties")] if isinstance(each, dict)]


def _is_array(schema: Mapping[str, Any]) -> bool:
    types = schema.get("type", ())
    return "array" in ([types] if isinstance(types, str) else types) or bool({"items", "prefixItems"} & schema.keys())


def _scalars(text: str | None, json: bool) -> Iterator[Any]:
    """What the text of a leaf may stand for. None is an empty XML element."""
    if text is None or not text:
        yield from (None, "") if text is None else ("", None)
        yield from ([], {})
        return
    yield text
    if _INTEGER.fullmatch(text):
        yield int(text)
    if _NUMBER.fullmatch(text):
        yield float(text)
    if text.lower() in _BOOLEANS:
        yield _BOOLEANS[text.lower()]
    if json and text[0] in "[{":
        try:
            yield parse_document("json", text)
        except Malformed:
            return
