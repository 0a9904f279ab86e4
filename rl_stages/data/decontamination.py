"""Decontamination: drops rows that share nine consecutive words with a benchmark (arXiv 2512.13607, section 4)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from cascade_rl.rl_stages.data.row_text import asked
from cascade_rl.rl_stages.data.rows import Row

WORDS = 9
_WORD = re.compile(r"\w+")


class Decontaminator:
    """`benchmark`: the texts of its prompts. A text of fewer than `words` words matches only an equal prompt."""

    def __init__(self, benchmark: Iterable[str], words: int = WORDS) -> None:
        self.words = words
        self.grams = {gram for text in benchmark for gram in ngrams(text, words)}

    def __call__(self, row: Row) -> str | None:
        """Why the row is dropped; None if it is kept. Raises UserError for a row without messages."""
        shared = next((gram for gram in ngrams(asked(row), self.words) if gram in self.grams), None)
        return None if shared is None else f"shares {self.words} words with the benchmark"


def ngrams(text: str, words: int) -> Iterator[str]:
    """Every `words` consecutive words, case-folded and without punctuation; a shorter text as a whole."""
    found = _WORD.findall(text.casefold())
    if 0 < len(found) < words:
        yield " ".join(found)
    for start in range(len(found) - words + 1):
        yield " ".join(found[start : start + words])
