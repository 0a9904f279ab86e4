import time

import pytest

from cascade_rl.rl_stages.rewards.verifiers.maths.names import has_variable, is_name, name_of, sides


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "x_1",
        r"\theta",
        "AB",
        "S_{n}",
        "f(x)",
        "f'(x)",
        "f^{-1}(x)",
        "P(A)",
        r"\angle ABC",
        r"\text{area}",
        "|AB|",
        "(p, q)",
    ],
)
def test_names(text):
    assert is_name(text) and has_variable(text)


@pytest.mark.parametrize(
    "text", ["5", "2x", "x+y", "x^2", r"\pi", r"\frac{1}{2}", r"\sqrt{x}", r"17 \cdot 23", "(1, 2)", ""]
)
def test_other_expressions_are_no_names(text):
    assert not is_name(text)


@pytest.mark.parametrize("piece", ["a", "a_1", "a ", r"\theta ", "a'", "a(b)"])
def test_a_long_text_that_is_no_name_takes_no_time(piece):
    started = time.process_time()
    assert not is_name(piece * (500 // len(piece)) + "!")
    assert time.process_time() - started < 1.0  # in as many ways as letters can be divided: for ever


def test_sides():
    assert sides("x = 2+3 = 5") == ["x", "2+3", "5"]
    assert sides("= 5") == ["5"]
    assert sides("x <= 5") == ["x <= 5"]
    assert sides(r"\sum_{k=1}^n k") == [r"\sum_{k=1}^n k"]
    assert name_of("x_{1} = 2") == "x_1" and name_of("2x = 4") == ""
    assert has_variable("2x") and not has_variable(r"e^{2} + 3i\pi")
