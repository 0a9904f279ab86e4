from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade_rl.rl_stages.rewards.verifiers.maths.numerals import (
    as_fraction,
    read_numeral,
    with_decimal_point,
    without_decimals,
    without_thousands,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", Fraction(7)),
        ("-07", Fraction(-7)),
        ("1,000", Fraction(1000)),
        ("1{,}000", Fraction(1000)),
        ("0.50", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("-3/6", Fraction(-1, 2)),
        (r"\dfrac{3}{6}", Fraction(1, 2)),
        (r"-\frac72", Fraction(-7, 2)),
        ("3 1/2", Fraction(7, 2)),
        ("-3 1/2", Fraction(-7, 2)),
        ("1/0", None),
        ("1,00", None),
        ("x", None),
        ("1e9", None),
        ("", None),
    ],
)
def test_plain_numbers_are_exact(text, value):
    assert as_fraction(text) == value


@pytest.mark.parametrize(
    ("text", "value", "behind"),
    [
        (r"0.\overline{3}", Fraction(1, 3), ""),
        (r"1.2\bar{34}", Fraction(611, 495), ""),
        (r"3\frac{1}{2} m", Fraction(7, 2), " m"),
        (r"1.5 \times 10^{3}", Fraction(1500), ""),
        (r"6.6 \cdot 10^{-34}", Fraction(66, 10**35), ""),
        ("10^6", Fraction(10**6), ""),
        ("1.5e-3", Fraction(3, 2000), ""),
        (r"-\frac{-1,000}{3}", Fraction(1000, 3), ""),
        ("1,234.5 kg", Fraction(2469, 2), " kg"),
        ("3:4", Fraction(3, 4), ""),
        ("2^{10}", Fraction(2), "^{10}"),
        ("12345,678", Fraction(12345), ",678"),
    ],
)
def test_a_numeral_is_read_and_the_rest_is_left(text, value, behind):
    assert read_numeral(text) == (value, behind)


@pytest.mark.parametrize("text", ["", "x", r"\sqrt{4}", r"\frac{1}{0}", r"\frac{x}{2}", "10^{99999}"])
def test_other_texts_are_no_numerals(text):
    assert read_numeral(text) is None


@given(st.integers(-(10**60), 10**60))
def test_a_number_of_any_size_with_or_without_thousands(number):
    assert read_numeral(str(number)) == read_numeral(f"{number:,}") == (number, "")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("1,234.5", "1234.5"),
        (r"2,000\sqrt{3}", r"2000\sqrt{3}"),
        ("1,000, 2,000", "1000, 2000"),
        (r"\frac{1,000}{3}", r"\frac{1000}{3}"),
        ("(1,234)", "(1,234)"),
        (r"\{100,200\}", r"\{100,200\}"),
        ("32, 349", "32, 349"),
        ("10,00", "10,00"),
        ("0,123", "0,123"),
    ],
)
def test_thousands_outside_brackets(text, plain):
    assert without_thousands(text) == plain


def test_decimals():
    assert with_decimal_point("2,74") == "2.74"
    assert with_decimal_point("2, 74") == "2, 74"
    assert without_decimals("0.25x + 3") == r"\frac{25}{100}x + 3"
