"""Makes a JSON schema strict: every property that it names is required, and no other is allowed.

That is the rule of NeMo-Gym's `structured_outputs`, here at every place where a value can stand. Several schemas may
describe one place (`allOf`, `$ref` beside `properties`, a condition). Then the place is closed once, around all of
them (NVIDIA-NeMo/Gym#1103 and #1233). Branches of `anyOf` or `oneOf` that alone describe a place are closed themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Any

from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.verifiers.structured.circles import refuse_circles
from cascade_rl.rl_stages.rewards.verifiers.structured.ecma_pattern import python_pattern

# Keywords whose schemas are for the same place, and those for other places.
LISTS = ("allOf", "anyOf", "oneOf")
CONSEQUENCES = ("then", "else")
CONDITIONS = ("if", "not", "propertyNames")
REST = ("additionalProperties", "unevaluatedProperties")
ITEMS = ("items", "unevaluatedItems")
MAPS_OF_PLACES = ("properties", "patternProperties")
LEFT_OUT = ("$id", "$schema", "$anchor", "$dynamicAnchor", "$defs", "definitions", "nullable")
NO_FREE_NULL = {"enum", "const", "$ref", "not", "if", *LISTS}
OF_OBJECTS, OF_LISTS = {"patternProperties", "additionalProperties"}, {"items", "prefixItems"}
NOTHING: frozenset[str] = frozenset()


class Mode(Enum):
    """CLOSED: its properties are required, no other is allowed. OPEN: required. PLAIN: as written, for conditions."""

    CLOSED = auto()
    OPEN = auto()
    PLAIN = auto()


def strict_schema(schema: Any) -> Any:
    """`schema` made strict, with `nullable` as a type, with expressions of Python's `re`, and with every reference to a
    `$defs` entry of the result.

    A place whose schema has `properties` or `items` and no `type` holds an object or a list; the standard lets it hold
    anything else. Two kinds of property are not required, since no document could have them: one that would hold the
    schema it is in, without end, and one that `not` or only some branches of `oneOf` require. Raises UserError for a
    reference to another document or to nothing, and for one that describes a place by itself.
    """
    return _Strict(schema).whole() if isinstance(schema, dict) else schema


class _Strict:
    """Builds one strict schema. `inside` names the references that a place is in and that no document can leave out."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._resolver = Registry().resolver_with_root(DRAFT202012.create_resource(root))
        self._names: dict[tuple[str, Mode], str] = {}
        self._definitions: dict[str, Any] = {}

    def whole(self) -> dict[str, Any]:
        strict = self._strict(self._root, Mode.CLOSED, frozenset({"#"}))
        refuse_circles(self._definitions)
        return strict | ({"$defs": self._definitions} if self._definitions else {})

    def _strict(self, schema: Any, mode: Mode, inside: frozenset[str] = NOTHING) -> Any:
        if not isinstance(schema, dict):
            return schema
        if "$dynamicRef" in schema:
            raise UserError("expected 'schema_str' to refer by $ref; found $dynamicRef")
        described = [] if mode is Mode.PLAIN else list(self._describing(schema, NOTHING))
        closed = self._closed_part(schema, described) if mode is Mode.CLOSED else None
        strict = {
            name: value for name, value in schema.items() if name not in (*LEFT_OUT, *(REST if described else ()))
        }
        if isinstance(strict.get("pattern"), str):
            strict["pattern"] = python_pattern(strict["pattern"])
        self._other_places(strict, mode, inside)
        self._same_place(strict, mode, closed, inside)
        if "properties" in described:
            strict["required"] = [name for name in schema["properties"] if self._possible(schema, name, inside)]
        if mode is Mode.CLOSED and described and closed is None:
            strict["additionalProperties" if described == ["properties"] else "unevaluatedProperties"] = False
        if mode is Mode.CLOSED and closed is None:
            strict |= self._implied_type(schema, described)
        return _nullable(strict) if schema.get("nullable") in (True, "true") else strict

    def _other_places(self, strict: dict[str, Any], mode: Mode, inside: frozenset[str]) -> None:
        inner = Mode.PLAIN if mode is Mode.PLAIN else Mode.CLOSED
        for name in MAPS_OF_PLACES:
            if isinstance(strict.get(name), dict):
                key_of = python_pattern if name == "patternProperties" else str
                strict[name] = {key_of(key): self._strict(value, inner, inside) for key, value in strict[name].items()}
        for name in (*REST, *ITEMS):
            if name in strict:
                strict[name] = self._strict(strict[name], inner)
        if isinstance(strict.get("prefixItems"), list):
            strict["prefixItems"] = [self._strict(value, inner) for value in strict["prefixItems"]]

    def _same_place(self, strict: dict[str, Any], mode: Mode, closed: str | None, inside: frozenset[str]) -> None:
        inner = Mode.PLAIN if mode is Mode.PLAIN else Mode.OPEN
        for name in LISTS:
            if isinstance(strict.get(name), list):
                each_mode, within = Mode.CLOSED if name == closed else inner, inside if name == "allOf" else NOTHING
                of_place = {"type": strict["type"]} if name == closed and "type" in strict else {}
                branches = [of_place | each if isinstance(each, dict) else each for each in strict[name]]
                strict[name] = [self._strict(each, each_mode, within) for each in branches]
        if "$ref" in strict:
            strict["$ref"] = self._reference(strict["$ref"], Mode.CLOSED if closed == "$ref" else inner, inside)
        for name in (*CONSEQUENCES, "contains"):
            if name in strict:
                strict[name] = self._strict(strict[name], inner)
        if isinstance(strict.get("dependentSchemas"), dict):
            strict["dependentSchemas"] = {k: self._strict(v, inner) for k, v in strict["dependentSchemas"].items()}
        for name in CONDITIONS:
            if name in strict:
                strict[name] = self._strict(strict[name], Mode.PLAIN)

    def _reference(self, reference: Any, mode: Mode, inside: frozenset[str]) -> str:
        target, key = self._target(reference), (reference, mode)
        if key not in self._names:
            self._names[key] = name = str(len(self._names))
            self._definitions[name] = self._strict(target, mode, inside | {reference})
        return f"#/$defs/{self._names[key]}"

    def _target(self, reference: Any) -> Any:
        form = "expected 'schema_str' to be the text of a JSON schema without references to other documents"
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise UserError(f"{form}; found {reference!r}")
        try:
            return self._resolver.lookup(reference).contents
        except Unresolvable:
            raise UserError(f"{form} or to nothing; found {reference!r}") from None

    def _describing(self, schema: Any, seen: frozenset[str]) -> Iterator[str]:
        """The keyword of every part of `schema` that names properties of its own place."""
        if not isinstance(schema, dict):
            return
        if isinstance(schema.get("properties"), dict):
            yield "properties"
        for name, parts in self._parts(schema, seen):
            if any(any(True for _ in self._describing(part, seen | {str(schema.get("$ref"))})) for part in parts):
                yield name

    def _parts(self, schema: Mapping[str, Any], seen: frozenset[str]) -> Iterator[tuple[str, list[Any]]]:
        """Keyword and schemas of each part that describes the same place. The branches of a choice are one part."""
        if "$ref" in schema and schema["$ref"] not in seen:
            yield "$ref", [self._target(schema["$ref"])]
        for name in LISTS:
            branches = schema[name] if isinstance(schema.get(name), list) else []
            yield from ((name, [each]) for each in branches) if name == "allOf" else [(name, branches)]
        yield from ((name, [schema[name]]) for name in CONSEQUENCES if name in schema)
        dependent = schema.get("dependentSchemas")
        yield from (
            ("dependentSchemas", [each]) for each in (dependent if isinstance(dependent, dict) else {}).values()
        )

    def _implied_type(self, schema: Mapping[str, Any], described: list[str]) -> dict[str, Any]:
        """The type of a place whose schema says what an object or a list holds, and does not say that it is one."""
        parts = [part for _, group in self._parts(schema, NOTHING) for part in group]
        if any("type" in each for each in [schema, *parts] if isinstance(each, dict)):
            return {}
        is_object = described or not OF_OBJECTS.isdisjoint(schema)
        types = ["object"] * bool(is_object) + ["array"] * (not OF_LISTS.isdisjoint(schema))
        return {"type": types} if types else {}

    @staticmethod
    def _closed_part(schema: Mapping[str, Any], described: list[str]) -> str | None:
        """The part that is closed itself, if it alone describes the place."""
        if len(described) != 1 or not {"patternProperties", "unevaluatedProperties"}.isdisjoint(schema):
            return None
        candidates = LISTS if "type" in schema else (*LISTS, "$ref")
        return described[0] if described[0] in candidates else None

    def _possible(self, schema: Mapping[str, Any], name: str, inside: frozenset[str]) -> bool:
        """Whether a document can have the property whenever it meets `schema`."""
        value, reference = schema["properties"][name], None
        if isinstance(value, dict) and not value.get("nullable"):
            reference = value.get("$ref")
        return reference not in inside and name not in _optional_by_choice(schema)


def _optional_by_choice(schema: Mapping[str, Any]) -> set[str]:
    """The properties that `not` requires, or only some branches of `oneOf`."""
    branches = [_required(each) for each in schema.get("oneOf") or ()]
    always = branches[0].intersection(*branches) if branches else set()
    return {name for branch in branches for name in branch} - always | _required(schema.get("not"))


def _required(schema: Any) -> set[str]:
    names = schema.get("required") if isinstance(schema, dict) else None
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _nullable(strict: dict[str, Any]) -> dict[str, Any]:
    """A schema that null meets too."""
    if isinstance(strict.get("type"), str) and not NO_FREE_NULL & strict.keys():
        return strict | {"type": [strict["type"], "null"]}
    return {"anyOf": [{"type": "null"}, strict]}
