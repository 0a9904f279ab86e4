"""Which files an issue is about, as far as words tell: BM25 over paths and identifiers.

Nemotron-Cascade's agentless repairs come with golden files and with retrieved ones, five at most. Its retriever is an
embedding model (NV-Embed-Code) beside a model's own guesses.
"""

from __future__ import annotations

import re

from cascade_rl.rl_stages.rewards.swe.repository import Files, can_be_patched

MOST_FILES = 5

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")  # parts of snake_case and camelCase


def retrieved(issue: str, files: Files, count: int = MOST_FILES) -> dict[str, str]:
    """The `count` source files that fit the issue best, best first; the first by name of those that fit alike."""
    from bm25s import BM25  # it imports numba where there is one

    paths = sorted(path for path in files if can_be_patched(path))
    index = BM25()
    index.index([words(f"{path} {files[path]}") for path in paths], show_progress=False)
    scores = dict(zip(paths, index.get_scores(words(issue)), strict=True))
    best = sorted(paths, key=lambda path: -scores[path])[:count]
    return {path: files[path] for path in best}


def words(text: str) -> list[str]:
    """Lower-case parts of names and words."""
    return [word.lower() for word in _WORD.findall(text)]
