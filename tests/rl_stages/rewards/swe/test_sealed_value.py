from collections import OrderedDict, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import numpy
import pytest

from cascade_rl.rl_stages.rewards.swe.sealed_value import Sealed, form, sealed_error

Pair = namedtuple("Pair", "a b")
Colour = IntEnum("Colour", "RED")
EQUAL = [
    (1, 1.0, True, 1 + 0j, Decimal(1), Colour.RED, numpy.int64(1), numpy.float32(1)),
    (0.5, Fraction(1, 2), numpy.float64(0.5)),
    (0, -0.0, False),
    ((1, "a"), Pair(1.0, "a")),
    ([1, 2], [1.0, 2], numpy.array([1, 2])),
    ({"a": 1, "b": 2}, OrderedDict(b=2, a=1)),
    ({1, 2}, frozenset((2.0, 1))),
    (b"a", bytearray(b"a")),
    (None,),
    ("1",),
    ([],),
    ((),),
    ({},),
    (set(),),
]


def test_equal_values_have_equal_forms_and_others_have_others():
    forms = [{form(value) for value in values} for values in EQUAL]
    assert all(len(found) == 1 for found in forms)
    assert len(set().union(*forms)) == len(EQUAL)


@pytest.mark.parametrize("other", [3, [1, 2], "é", numpy.array([1, 2])])
def test_a_seal_equals_everything_and_says_what(other):
    seen: set[str] = set()
    seal = Sealed(1, seen)
    assert (other == seal) is True and (seal == other) is True and seen == {form(other)}


def test_what_has_no_form_is_named():
    class Equal:
        def __eq__(self, other: object) -> bool:
            return NotImplemented

    deep: list[object] = []
    deep.append(deep)
    seen: set[str] = set()
    assert all(each == Sealed(1, seen) for each in (Equal(), deep, 10**5000, object))
    assert seen == {"a Equal", "a list", "a int", "a type"}


def test_a_sealed_error_catches_everything_and_says_what():
    class Own(KeyError): ...

    for error, name in ((Own(), "KeyError"), (UnicodeDecodeError("a", b"", 0, 1, ""), "UnicodeDecodeError")):
        seen: set[str] = set()
        with pytest.raises(sealed_error(seen)):
            raise error
        assert seen == {name}
