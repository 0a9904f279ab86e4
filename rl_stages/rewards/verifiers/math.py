r"""Math answers: compares the last `\boxed{}` with the expected answer.

Plain numbers are compared exactly as fractions, in process. Everything else goes to math-verify, in a worker
process that is killed at a deadline: an answer such as `10^{10^{10}}` never returns. math-verify sees only the
content of the box: its own extraction joins all boxes of a text into a set, and it reads the right side of any
equation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.deadline_worker import DeadlineCheck
from cascade_rl.rl_stages.rewards.verifiers import math_worker

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

MAX_ANSWER_CHARACTERS = 512
MAX_NESTING = 64

_INTEGER = re.compile(r"[+-]?\d{1,30}")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")
_DECIMAL = re.compile(r"[+-]?\d{0,18}\.\d{1,18}")
_RATIO = re.compile(r"([+-]?)(\d{1,18})/(\d{1,18})")
_LATEX_RATIO = re.compile(r"([+-]?)\\[dt]?frac\{(\d{1,18})\}\{(\d{1,18})\}")
_SHORT_RATIO = re.compile(r"([+-]?)\\[dt]?frac(\d)(\d)")
_MIXED = re.compile(r"([+-]?)(\d{1,9}) +(\d{1,9})/(\d{1,9})")
_NAMED_VALUE = re.compile(r"\s*[A-Za-z]\s*=[^=]*")
_ALTERNATIVES = re.compile(r"\b(or|and|not|either)\b")
_SEVERAL = re.compile(r",|<|>|\\[lg]eq?\b|\\in\b|\\pm\b")  # a list, or what may be written as an interval or a set


def last_box(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`; None without one, or when its braces do not balance."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for position in range(start + 6, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + 7 : position].strip()
    return None


def as_fraction(text: str) -> Fraction | None:
    """The exact value of a plain number, a ratio or a mixed number; None for anything else."""
    plain = text.strip().strip("$").replace("{,}", ",").replace("\\,", "").replace("\\!", "").strip()
    if match := _MIXED.fullmatch(plain):
        sign, whole, numerator, denominator = match.groups()
        return _ratio(sign, int(whole), int(numerator), int(denominator))
    if match := _RATIO.fullmatch(plain) or _LATEX_RATIO.fullmatch(plain) or _SHORT_RATIO.fullmatch(plain):
        sign, numerator, denominator = match.groups()
        return _ratio(sign, 0, int(numerator), int(denominator))
    if _THOUSANDS.fullmatch(plain):
        return Fraction(plain.replace(",", ""))
    return Fraction(plain) if _INTEGER.fullmatch(plain) or _DECIMAL.fullmatch(plain) else None


def _ratio(sign: str, whole: int, numerator: int, denominator: int) -> Fraction | None:
    return None if denominator == 0 else int(f"{sign}1") * (whole + Fraction(numerator, denominator))


def objection(answer: str, expected: str) -> str | None:
    """Why a boxed answer is not shown to math-verify, or None.

    Each rule closes a hole where math-verify accepts a wrong answer.
    """
    if len(answer) > MAX_ANSWER_CHARACTERS:
        return f"a boxed answer of {len(answer)} characters, more than {MAX_ANSWER_CHARACTERS}"
    if max(answer.count("{"), answer.count("(")) > MAX_NESTING:
        return f"more than {MAX_NESTING} brackets in the box"
    if "=" in answer and "=" not in expected and not _NAMED_VALUE.fullmatch(answer):
        return "an equation where a value is expected"
    if _ALTERNATIVES.search(answer) and not _ALTERNATIVES.search(expected):
        return "several alternatives where one answer is expected"
    if "," in answer and not _SEVERAL.search(expected):
        return "a list where one answer is expected"
    return None


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The verifier's field of a NeMo-Gym row, checked: `expected_answer`, which must be readable.

    An unreadable one would silently make every answer wrong.
    """
    expected = row.get("expected_answer")
    if not isinstance(expected, str) or not expected.strip():
        raise UserError(f"expected 'expected_answer' to be non-empty text such as \"7\"; found {expected!r}")
    if as_fraction(expected) is None:
        from math_verify import parse  # takes 1.2 s, so only for data sets with symbolic answers

        if all(isinstance(reading, str) for reading in parse(f"\\boxed{{{expected}}}", parsing_timeout=None)):
            raise UserError(f"expected 'expected_answer' to be a number or LaTeX; found {expected!r}")
    return {"expected_answer": expected}


class MathVerifier:
    """Score 1 for an equal answer; 0 for another, for none, and for one that is undecided at the deadline.

    If an undecided one were an infrastructure failure, a policy could mask the prompts that it cannot answer. Safe to
    call from several threads. The worker starts with the first answer that needs it.
    """

    concurrency = 1

    def __init__(self, deadline_seconds: float = 5.0) -> None:
        self._check = DeadlineCheck(math_worker.__name__, deadline_seconds)

    def __call__(self, task: Task, text: str) -> Verdict:
        answer = last_box(final_answer(text) or "")
        if not answer:
            return Verdict.wrong_format("expected \\boxed{answer} after the reasoning; found none")
        return self._compare(answer, task.metadata["expected_answer"])

    def close(self) -> None:
        """Ends the worker process, if there is one."""
        self._check.close()

    def _compare(self, answer: str, expected: str) -> Verdict:
        value, wanted = as_fraction(answer), as_fraction(expected)
        if value is not None and wanted is not None:
            return Verdict.scored(float(value == wanted), detail=f"{answer} against {expected}")
        if why := objection(answer, expected):
            return Verdict.scored(0.0, detail=why)
        return self._check({"answer": answer, "expected": expected})
