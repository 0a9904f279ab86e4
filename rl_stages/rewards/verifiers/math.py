r"""Math answers: compares the last `\boxed{}`, or the last ones that one sentence joins, with the expected answer.

Plain numbers are compared exactly as fractions, in process. What an answer says is read by `maths/comparison.py`, in
process as far as it goes. What is symbolic goes to math-verify, in a worker process that is killed at a deadline: an
answer such as `10^{10^{10}}` never returns. math-verify sees single values only: its own extraction joins all boxes of
a text into a set, reads the right side of any equation, and drops what it cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.deadline_worker import DeadlineCheck
from cascade_rl.rl_stages.rewards.verifiers.maths import worker
from cascade_rl.rl_stages.rewards.verifiers.maths.boxes import answer_boxes
from cascade_rl.rl_stages.rewards.verifiers.maths.comparison import right
from cascade_rl.rl_stages.rewards.verifiers.maths.numerals import as_fraction

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

MAX_ANSWER_CHARACTERS = 512
MAX_NESTING = 64

_expected_fraction = lru_cache(maxsize=4096)(as_fraction)  # all answers to a prompt ask for it
_INTEGER = re.compile(r"[+-]?\d[\d,]{0,4299}")  # read whole: Python converts no more than 4,300 digits
_COMMAND = re.compile(r"\\[A-Za-z]+")


class _SymbolicError(Exception):
    """The comparison has come to something symbolic."""


class _Asked:
    """Stands in for math-verify where it is not loaded."""

    def equal(self, expected: str, given: str) -> bool:
        raise _SymbolicError

    def rounds(self, exact: str, decimal: str) -> bool:
        raise _SymbolicError


def objection(answer: str) -> str | None:
    """Why a boxed answer is not read, or None."""
    if len(answer) > MAX_ANSWER_CHARACTERS and not _INTEGER.fullmatch(answer.strip()):
        return f"a boxed answer of {len(answer)} characters, more than {MAX_ANSWER_CHARACTERS}"
    if max(answer.count("{"), answer.count("(")) > MAX_NESTING:
        return f"more than {MAX_NESTING} brackets in the box"
    return None


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The verifier's field of a NeMo-Gym row, checked: `expected_answer`, which must say something.

    One that math-verify cannot read equals the same text alone.
    """
    expected = row.get("expected_answer")
    if not isinstance(expected, str) or not expected.strip():
        raise UserError(f"expected 'expected_answer' to be non-empty text such as \"7\"; found {expected!r}")
    if not re.search(r"\w", _COMMAND.sub("", expected)) and not _is_read(expected):
        raise UserError(f"expected 'expected_answer' to be a number or LaTeX; found {expected!r}")
    return {"expected_answer": expected}


def _is_read(expected: str) -> bool:
    r"""Whether math-verify reads commands and signs alone, such as `\emptyset`."""
    from math_verify import parse  # takes 1.2 s

    return any(not isinstance(reading, str) for reading in parse(f"\\boxed{{{expected}}}", parsing_timeout=None))


class MathVerifier:
    """Score 1 for an equal answer; 0 for another, for none, and for one that is undecided at the deadline.

    If an undecided one were an infrastructure failure, a policy could mask the prompts that it cannot answer. Safe to
    call from several threads. The worker starts with the first answer that needs it.
    """

    concurrency = 1

    def __init__(self, deadline_seconds: float = 5.0) -> None:
        self._check = DeadlineCheck(worker.__name__, deadline_seconds)

    def __call__(self, task: Task, text: str) -> Verdict:
        boxes = answer_boxes(final_answer(text) or "")
        if not boxes or not boxes[-1]:
            return Verdict.wrong_format("expected \\boxed{answer} after the reasoning; found none")
        return self._compare(", ".join(boxes), task.metadata["expected_answer"])

    def close(self) -> None:
        """Ends the worker process, if there is one."""
        self._check.close()

    def _compare(self, answer: str, expected: str) -> Verdict:
        value, wanted = as_fraction(answer), _expected_fraction(expected)
        if value is not None and wanted is not None:
            return Verdict.scored(float(value == wanted), detail=f"{answer} against {expected}")
        if why := objection(answer):
            return Verdict.scored(0.0, detail=why)
        try:
            return Verdict.scored(float(right(answer, expected, _Asked())), detail=f"{answer} against {expected}")
        except _SymbolicError:
            return self._check({"answer": answer, "expected": expected})
