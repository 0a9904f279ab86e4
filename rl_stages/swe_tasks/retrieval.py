"""Finds the files that an issue is about by BM25 over paths and identifiers.

Nemotron-Cascade's agentless repairs show the golden files, or at most five retrieved ones (arXiv 2512.13607 and
2603.19220). Its retriever combines an embedding model (NV-Embed-Code) with a model's own guesses.
"""

from __future__ import annotations

import re

from cascade_rl.rl_stages.rewards.swe.repository import Files, can_be_patched

MOST_FILES = 5

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")  # parts of snake_case and camelCase


def retrieved(issue: str, files: Files, count: int = MOST_FILES) -> dict[str, str]:
    """The `count` source files that match the issue best, best first. Ties are broken by name."""
    from bm25s import BM25  # imported here: it imports numba if that is installed

    paths = sorted(path for path in files if can_be_patched(path))
    index = BM25()
    index.index([words(f"{path} {files[path]}") for path in paths], show_progress=False)
    scores = dict(zip(paths, index.get_scores(words(issue)), strict=True))
    best = sorted(paths, key=lambda path: -scores[path])[:count]
    return {path: files[path] for path in best}


def words(text: str) -> list[str]:
    """Lower-case parts of names and words."""
    return [word.lower() for word in _WORD.findall(text)]
