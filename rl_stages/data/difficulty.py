"""Difficulty filters: on a row's `pass_rate`, or on the `answer_scores` of a paper's number of answers.

`cascade data pass-rate` writes both. An answer passes with a score above 0.5, as where Cascade 1 selects SWE prompts
(arXiv 2512.13607, section 4). Most verifiers score 0 or 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.messages import shown
from cascade_rl.rl_stages.data.row_text import asked
from cascade_rl.rl_stages.data.rows import Row

PASSES_ABOVE = 0.5


def pass_rate(scores: Sequence[float]) -> float:
    """The share of the answers that passed."""
    return sum(score > PASSES_ABOVE for score in scores) / len(scores)


@dataclass(frozen=True)
class PassRateFilter:
    """Keeps the rows whose pass rate is in [low, high]."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise UserError(f"expected pass rates 0 <= LOW <= HIGH <= 1; found {self.low} and {self.high}")

    def __call__(self, row: Row) -> str | None:
        """Why the row is dropped; None if it is kept. Raises UserError for a row without a pass rate in [0, 1]."""
        rate = row.get("pass_rate")
        if rate is None or not _is_number(rate) or not 0 <= rate <= 1:
            raise UserError(f"expected 'pass_rate' to be a number in [0, 1]; found {shown(rate)}")
        if rate < self.low:
            return f"pass rate below {self.low:g}"
        return f"pass rate above {self.high:g}" if rate > self.high else None


@dataclass(frozen=True)
class PaperFilter:
    """The rows that a paper keeps, by the scores of `answers` answers of `model`.

    easy        rows with this pass rate or a higher one are dropped; None: none is too easy
    hard_share  share that is kept of the rows all of whose answers score 0. A hash of the prompt decides
    """

    model: str
    answers: int
    easy: float | None
    hard_share: float

    def __call__(self, row: Row) -> str | None:
        """Why the row is dropped; None if it is kept. Raises UserError for a row without `answers` scores."""
        scores = row.get("answer_scores")
        if not isinstance(scores, list) or len(scores) != self.answers or not all(map(_is_number, scores)):
            raise UserError(
                f"expected 'answer_scores' to be {self.answers} numbers, of answers of {self.model}; found "
                f"{shown(scores)}: `cascade data pass-rate` writes them"
            )
        if self.easy is not None and pass_rate(scores) >= self.easy:
            return f"solved {self.easy:.0%} of {self.answers} times or more"
        if max(scores) <= 0 and _draw(row) >= self.hard_share:
            return f"never solved in {self.answers} times"
        return None


# 1: arXiv 2512.13607, section 4. 2: arXiv 2603.19220, section 4.
PAPER_FILTERS = {
    "cascade1-math": PaperFilter("AceReason-7B", 16, easy=0.75, hard_share=1.0),
    "cascade1-code-easy": PaperFilter("AceReason-7B", 8, easy=1.0, hard_share=1.0),
    "cascade1-code-hard": PaperFilter("DeepSeek-R1-0528", 8, easy=None, hard_share=0.0),
    "cascade1-swe": PaperFilter("DeepSeek-R1-0528", 8, easy=0.5, hard_share=0.0),
    "cascade2-code": PaperFilter("GPT-OSS-120B", 8, easy=1.0, hard_share=1.0),
    "cascade2-swe-agentic": PaperFilter("an intermediate model", 16, easy=1.0, hard_share=0.1),
}


def _draw(row: Row) -> float:
    """A number in [0, 1) that follows from the prompt; independent of the one that chooses held-out prompts."""
    digest = hashlib.blake2b(asked(row).encode(), digest_size=8, person=b"difficulty")
    return int.from_bytes(digest.digest(), "big") / 2**64


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
