"""Why scores differ from published ones. A difference without an entry here is not explained."""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """`told` is a part of our verdict, or of why we refuse the row."""

    package: str
    group: str
    told: str
    why: str


CONTRADICTION = "the answer contradicts itself"
COMMA = "a decimal comma in the expected answer: here a comma separates values or thousands"
REASONS = (
    Reason("nemo-gym", "structured_outputs", "", "the wheel has the rollout without its schema"),
    Reason("nemo-gym", "workplace_assistant", "'ground_truth'", "the wheel has the rollout without its ground truth"),
    Reason("nemo-gym", "gpqa_diamond", "'options'", "the wheel has the rollout without its options"),
    Reason("nemo-gym", "mcqa", "C against C", "a letter beside its option's text, in a box, is an answer"),
    Reason("nemo-gym", "cline_math", "more than 512", "an integer of 1,153 digits; a boxed answer may have 512"),
    Reason("nemo-gym", "openclaw_math", "more than 512", "an integer of 1,153 digits; a boxed answer may have 512"),
    Reason("math-verify", "test_all", "1.22 against 1,22", COMMA),
    Reason("math-verify", "test_all", "0.111 against 0,111", COMMA),
    Reason("math-verify", "test_all", "x = 5+5+1 =", CONTRADICTION),
    Reason("math-verify", "test_all", "z = 3+3 = 2 against", CONTRADICTION),
    Reason("math-verify", "test_all", "x=1/3\\approx1.3", CONTRADICTION),
    Reason("math-verify", "test_all", "255 against 10455", "the last box has another value than the text after it"),
    Reason("math-verify", "test_all", "less than or equal to zero", "the boxed answer is a sentence"),
    Reason("math-verify", "test_all", "\\boxed{1}\\boxed{2}", "two boxes inside of a box"),
    Reason("math-verify", "test_boxed", "++++++", "two boxes with signs between them"),
    Reason("math-verify", "test_numina_cases", "p=5,q=2;p=7,q=2", "lists of named values are not read"),
    Reason("math-verify", "test_yujianll", "1 - \\frac{1}{\\mathrm{e}}", "its own error: the values differ"),
)


def reason(package: str, group: str, told: str) -> str:
    """The reason, or an empty text."""
    fitting = (one.why for one in REASONS if (one.package, one.group) == (package, group) and one.told in told)
    return next(fitting, "")
