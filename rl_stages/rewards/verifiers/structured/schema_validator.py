"""The JSON schema validator of documents: draft 2020-12 with checked formats and exact division.

`multipleOf` divides the decimals that were written, as the standard means it (section 6.2.1). jsonschema divides their
doubles, so that 19.99 is no multiple of 0.01.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from cascade_rl.rl_stages.rewards.verifiers.structured.formats import FORMATS


def _multiple_of(validator: Any, divisor: float, value: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "number") and (Fraction(repr(value)) / Fraction(repr(divisor))).denominator != 1:
        yield ValidationError(f"{value!r} is not a multiple of {divisor}")


_Validator = extend(Draft202012Validator, {"multipleOf": _multiple_of})


def schema_validator(schema: Mapping[str, Any]) -> Any:
    """A jsonschema validator of `schema`."""
    return _Validator(schema, format_checker=FORMATS)
