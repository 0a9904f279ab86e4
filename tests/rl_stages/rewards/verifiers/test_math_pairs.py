"""Sixty-three pairs of an expected and a given answer, and which are equal.

They include everything that math-verify 0.9.0 alone got wrong in an earlier measurement of ours with pairs of the
same kinds.
"""

import pytest

from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.verifiers.math import MathVerifier, parse_row

MATRIX = r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"

# expected, given, whether they are equal
PAIRS = [
    (r"\frac{1}{2}", "0.5", True),
    ("1/3", r"\frac{2}{6}", True),
    ("1/3", "0.333333", False),
    ("0.5", "0.4999999", False),
    (r"\frac{7}{2}", r"3\frac{1}{2}", True),
    (r"\frac72", "3 1/2", True),
    (r"\frac{3}{4}", r"\frac{4}{3}", False),
    (r"\{1, 2, 3\}", r"\{3, 1, 2\}", True),
    (r"\{1, 2\}", r"\{1, 2, 3\}", False),
    (r"\{1, 2\}", "1, 2", True),
    ("1, 2", "1, 2", True),
    ("1, 2", "1, 3", False),
    ("(1, 2)", "(1, 2)", True),
    ("(1, 2)", "(2, 1)", False),
    ("[1, 2)", "[1, 2)", True),
    ("[1, 2)", "[1, 2]", False),
    (r"(-\infty, 1) \cup (2, \infty)", r"(2, \infty) \cup (-\infty, 1)", True),
    (r"(-\infty, 1) \cup (2, \infty)", r"(-\infty, 1) \cup [2, \infty)", False),
    ("x < 5", r"x \in (-\infty, 5)", True),
    (r"x \in (-\infty, 5)", "x < 5", True),
    ("[1, 2]", r"1 \le x \le 2", True),
    (MATRIX, MATRIX.replace("pmatrix", "bmatrix"), True),
    (MATRIX, MATRIX.replace("4", "5"), False),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \end{pmatrix}", False),
    ("5", "x = 5", True),
    ("x = 5", "5", True),
    ("x = 5", "x = 6", False),
    ("2x + 3y = 6", "3y + 2x = 6", True),
    ("x + y = 2", "y = 2 - x", True),
    ("y = 2x + 1", "y = 2x - 1", False),
    ("1000", "1,000", True),
    ("1000", r"1{,}000", True),
    ("1000", "1.000", False),
    (r"50\%", "0.5", True),
    (r"50\%", "50", True),
    (r"50\%", "5", False),
    (r"\pm 2", r"\{-2, 2\}", True),
    (r"\pm 2", "2", False),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}", True),
    (r"\sqrt{8}", r"2\sqrt{2}", True),
    (r"\sqrt{2}", "1.41421", False),
    (r"\sin^2 x + \cos^2 x", "1", True),
    (r"\tan \frac{\pi}{4}", "1", True),
    ("3 + 4i", "4i + 3", True),
    ("3 + 4i", "3 - 4i", False),
    (r"1.5 \times 10^3", "1500", True),
    ("123456789012345678901234567890", "123456789012345678901234567890", True),
    ("123456789012345678901234567890", "123456789012345678901234567891", False),
    ("2^{100}", "1267650600228229401496703205376", True),
    (r"\infty", r"+\infty", True),
    (r"\infty", r"-\infty", False),
    ("(x + 1)^2", "x^2 + 2x + 1", True),
    ("x^2", "x^2 + 1", False),
    ("7!", "5040", True),
    (r"\log_2 8", "3", True),
    (r"\binom{5}{2}", "10", True),
    (r"10 \text{ m}", r"10 \text{ cm}", False),
    (r"\frac{\pi}{2}", r"90^\circ", True),
    ("B", "(B)", True),
    ("12:30", "12:30", True),
    ("42", r"41} wait, \boxed{42", True),
    (r"\overline{AB}", "AB", True),
    (r"\frac{1}{3}", r"0.\overline{3}", True),
]


@pytest.fixture(scope="module")
def verifier():
    made = MathVerifier(deadline_seconds=30.0)
    yield made
    made.close()


def equal(verifier: MathVerifier, expected: str, given: str) -> bool:
    task = Task("t", "math", (), parse_row({"expected_answer": expected}))
    return verifier(task, f"\\boxed{{{given}}}").score == 1.0


def test_sixty_three_pairs(verifier):
    found = {(expected, given): equal(verifier, expected, given) for expected, given, _ in PAIRS}
    assert len(found) == 63
    assert not [(expected, given) for expected, given, right in PAIRS if found[expected, given] is not right]
