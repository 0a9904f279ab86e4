from fractions import Fraction

import pytest

from cascade_rl.rl_stages.rewards.verifiers.maths.units import is_unit, measure


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        ("cm", ((("length", 1),), Fraction(1, 100))),
        ("square metres", ((("length", 2),), Fraction(1))),
        ("km/h", ((("length", 1), ("time", -1)), Fraction(5, 18))),
        ("kph", ((("length", 1), ("time", -1)), Fraction(5, 18))),
        ("m/s^2", ((("length", 1), ("time", -2)), Fraction(1))),
        ("feet", ((("length", 1),), Fraction("0.3048"))),
        ("apples", None),
        ("m per apple", None),
    ],
)
def test_measures(text, measured):
    assert measure(text) == measured


def test_names_of_units():
    assert all(map(is_unit, ("m", "inches", "litres", "Hours", "lbs")))
    assert not any(map(is_unit, ("x", "apples", "", "es")))
