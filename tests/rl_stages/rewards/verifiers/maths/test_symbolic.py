import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_rl.rl_stages.rewards.verifiers.maths.symbolic import MathVerify, same_constant


def test_irrational_constants_are_the_same_where_forty_digits_are():
    root = sympy.sqrt(2)
    assert same_constant(root, 2 / root) and same_constant(sympy.S.Zero, root - root)
    assert same_constant(root, root + sympy.Rational(1, 10**30)) is False
    assert same_constant(root, root * sympy.I) is False
    for other in (sympy.oo, sympy.nan, sympy.Symbol("x"), "1", {2}):
        assert same_constant(root, other) is None and same_constant(other, root) is None


@given(st.integers(1, 10**90), st.integers(1, 10**90))
def test_rational_constants_are_exact(numerator, denominator):
    one, other = sympy.Rational(numerator, denominator), sympy.Rational(numerator + 1, denominator)
    assert same_constant(one, one) is True
    assert same_constant(one, other) is False


@settings(max_examples=20, deadline=None)
@given(st.integers(40, 400), st.integers(2, 9))
def test_powers_and_their_neighbours_differ(power, base):
    for made in (f"{base}^{{{power}}}", rf"{base}^{{{power}}}\sqrt{{2}}", f"{base}^{{-{power}}}"):
        assert MathVerify().equal(made, made)
        assert not MathVerify().equal(f"{made}-1", made)
        assert not MathVerify().equal(f"-{made}", made)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"10^{-18}x", r"-10^{-18}x"),
        (r"\{1, 10^{-18}\}", r"\{1, 10^{-19}\}"),
        (r"[0, 10^{-18}]", r"[0, 10^{-19}]"),
        (r"x = 10^{-18}", "x = 10^{-19}"),
        ("x < 10^{-18}", "x < 10^{-19}"),
        (r"\begin{pmatrix} 10^{-18} \\ 1 \end{pmatrix}", r"\begin{pmatrix} -10^{-18} \\ 1 \end{pmatrix}"),
        (r"\frac{x}{3}", "0.333333333x"),
        (r"2^{200}\pi", r"2^{200}\pi + 1"),
    ],
)
def test_constants_are_exact_inside_other_expressions(one, other):
    assert MathVerify().equal(one, one)
    assert not MathVerify().equal(one, other)


def test_rounding():
    assert MathVerify().rounds(r"\sqrt{10}", "3.16")
    assert not MathVerify().rounds(r"\sqrt{10}", "3.17")
    assert not MathVerify().rounds("x", "3.16")
