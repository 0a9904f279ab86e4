from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade_rl.rl_stages.rewards.verifiers.maths.quantities import (
    Quantity,
    other_unit,
    read_quantity,
    same_quantity,
    same_time,
)


@pytest.mark.parametrize(
    ("text", "quantity"),
    [
        (r"5 \text{ cm}", Quantity(Fraction(5), unit="cm")),
        ("5 m^2", Quantity(Fraction(5), unit="m^2")),
        (r"5 \text{ million}", Quantity(Fraction(5_000_000))),
        ("2 dozen", Quantity(Fraction(24))),
        ("$5.00", Quantity(Fraction(5), unit="$")),
        ("-$5", Quantity(Fraction(-5), unit="$")),
        (r"28\%", Quantity(Fraction(28), percent=True)),
        ("28 percent", Quantity(Fraction(28), percent=True)),
        (r"90^\circ", Quantity(Fraction(90), unit="deg")),
        (r"5^{\text{th}}", Quantity(Fraction(5))),
        (r"\text{The answer is } 5", Quantity(Fraction(5))),
        (r"\text{Area: } 5", Quantity(Fraction(5))),
        ("(5)", Quantity(Fraction(5))),
    ],
)
def test_what_stands_around_a_number_is_read(text, quantity):
    assert read_quantity(text) == quantity


@pytest.mark.parametrize(
    "text",
    [
        "5x", "5 x", "5i", r"5\pi", "5^2", "5!", "5_8", "5 squared", "5 out of 6",
        r"5 \text{ or less}", r"5 \text{ mod } 7",
        r"5 \text{ remainder } 2", r"\text{half of } 5", "5 p.m.", "5 to 6",
        "5?", "5 and a half", "",
    ],
)  # fmt: skip
def test_a_number_that_something_changes_is_no_number(text):
    assert read_quantity(text) is None


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        ("5", r"5\%", True), (r"5\%", "5", True), (r"50\%", "0.5", True), ("0.5", r"50\%", True),
        (r"\frac12", r"50\%", True),
        ("5", r"500\%", False), ("2", r"200\%", False), (r"50\%", "5", False), (r"50\%", r"0.5\%", False),
        ("10 m", "10 cm", False), ("10 m", "1000 cm", True), ("10 m", "10 m^2", False), ("10 m", "10 seconds", False),
        ("10", "10 cm", True), ("10 cm", "10", True), ("10 apples", "10 fruits", True),
        ("2 hours", "120 minutes", True),
        ("72 km/h", "20 m/s", True), ("60 mph", "60 miles per hour", True), ("3 m^2", "3 square meters", True),
        ("$5", "500 cents", True), ("$5", "5 cents", False),
    ],
)  # fmt: skip
def test_units_and_percents_count(expected, given, same):
    assert same_quantity(read_quantity(expected), read_quantity(given)) is same


@given(
    st.integers(1, 10**9),
    st.sampled_from(["mm", "cm", "km", "inches", "ft", "miles", "s", "hours", "g", "kg", "lb", "m/s"]),
)
def test_another_unit_of_the_same_number_is_another_answer(number, unit):
    expected, given = read_quantity(f"{number} m"), read_quantity(rf"{number}\text{{ {unit}}}")
    assert not same_quantity(expected, given)
    assert same_quantity(read_quantity(str(number)), given)


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        ("9:30", "9:30", True), ("9:30", "9:31", False), ("12:00", "1:00", False), ("9:30", r"9:30 \text{ p.m.}", True),
        (r"9:30 \text{ a.m.}", r"9:30 \text{ p.m.}", False), (r"9:30 \text{ p.m.}", "9:30", False),
        (r"3:00 \text{ PM}", "15:00", True), (r"12:15 \text{ a.m.}", "0:15", True), ("9:30", "9.5", None),
    ],
)  # fmt: skip
def test_times_of_day(expected, given, same):
    assert same_time(expected, given) is same


def test_the_unit_of_a_closed_form():
    assert other_unit(r"2\sqrt{3} \text{ m}", r"2\sqrt{3} \text{ cm}")
    assert other_unit(r"2\sqrt{3}", r"2\sqrt{3} \text{ million}")
    assert not other_unit(r"2\sqrt{3}", r"2\sqrt{3} \text{ cm}")
    assert not other_unit(r"2\sqrt{3} \text{ cm}", r"2\sqrt{3}")
    assert not other_unit(r"2\sqrt{3} \text{ cm}", r"\sqrt{12} \text{ centimeters}")
