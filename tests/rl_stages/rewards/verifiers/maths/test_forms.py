import pytest

from cascade_rl.rl_stages.rewards.verifiers.maths.forms import other_statement, unevaluated


@pytest.mark.parametrize(
    ("given", "operation"),
    [
        (r"\int_0^1 x dx", "integral"), (r"\sum_{k=1}^n k", "sum"), (r"\prod_k k", "product"),
        (r"\lim_{x\to0} x", "limit"),
        (r"\frac{d}{dx} x^2", "derivative"), (r"\det A", "determinant"), ("5!", "factorial"),
        (r"\binom{5}{2}", "binomial"),
        (r"\lfloor x \rfloor", "floor"), (r"\max(1, 2)", "extremum"), (r"\gcd(4, 6)", "divisor"),
        (r"7 \bmod 3", "remainder"),
        (r"\sin 1", "function"), (r"\log_2 8", "function"), (r"2\sqrt{3} + \pi", None), (r"\frac{e^2}{2}", None),
        ("x^2 + 1", None),
    ],
)  # fmt: skip
def test_an_operation_that_is_not_expected(given, operation):
    assert unevaluated(given, "x") == operation
    assert unevaluated(given, given) is None


def test_elementary_functions_are_one_family():
    assert unevaluated(r"\sec^2 y", r"1 + \tan^2 y") is None
    assert unevaluated(r"\cosh 1", r"\frac{e + e^{-1}}{2}") is None


@pytest.mark.parametrize(
    ("given", "expected", "statement"),
    [
        (r"\neq 5", "5", "negation"), ("x < 5", "5", "inequality"), (r"\text{at least } 5", "5", "bound"),
        ("101_2", "101", "base"),
        (r"5 \pmod 7", "5", "congruence"), (r"x \to 5", "5", "arrow"), ("x < 5", r"(-\infty, 5)", None),
        ("x_1 = 5", "5", None),
        (r"\left(1\right)", "1", None),
    ],
)  # fmt: skip
def test_a_relation_that_is_not_expected(given, expected, statement):
    assert other_statement(given, expected) == statement
