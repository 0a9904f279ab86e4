"""SEARCH/REPLACE patches, the answer format of SWE-RL and of both papers' agentless repair.

    <solution>
    ```python
    ### path/to/file.py
    <<<<<<< SEARCH
    lines that are there
    =======
    lines that replace them
    >>>>>>> REPLACE
    ```
    </solution>

The tags and the fences may be left out: what says where a block begins is its path and its marker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

SEARCH, DIVIDER, REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"

_SOLUTION = re.compile(r"<solution>(.*?)</solution>", re.DOTALL)
_FENCE = re.compile(r"```\w*")


class PatchError(ValueError):
    """The text is no patch of these files."""


@dataclass(frozen=True)
class Edit:
    """One block: `search`, the lines as they stand in the file at `path`, becomes `replace`."""

    path: str
    search: str
    replace: str


def parse_edits(text: str) -> list[Edit]:
    """The blocks of an answer, in order, in one pass over its lines. PatchError on none and on a malformed one."""
    lines = iter(_solution(text).splitlines())
    edits: list[Edit] = []
    path = None
    for line in lines:
        if line.startswith("### "):
            path = line.removeprefix("### ").strip()
        elif line == SEARCH:
            if not path:
                raise PatchError(f"expected a line '### path' before {SEARCH!r}; found none")
            edits.append(Edit(path, _until(DIVIDER, lines), _until(REPLACE, lines)))
        elif line.strip() and not _FENCE.fullmatch(line):
            raise PatchError(f"expected '### path', {SEARCH!r} or a fence; found {line[:80]!r}")
    if not edits:
        raise PatchError(f"expected a block that begins with {SEARCH!r}; found none")
    return edits


def apply_edits(files: Mapping[str, str], edits: Sequence[Edit]) -> dict[str, str]:
    """`files` after the edits. Every occurrence at the start of a line is replaced, as SWE-RL does.

    PatchError on a file that is not there and on lines that are not in it.
    """
    changed = dict(files)
    for edit in edits:
        if edit.path not in changed:
            raise PatchError(f"expected a path among {', '.join(sorted(files)[:5])}; found {edit.path!r}")
        text, search = "\n" + changed[edit.path], "\n" + edit.search
        if not edit.search or search not in text:
            raise PatchError(f"expected lines of {edit.path}; found {edit.search[:80]!r}, which is not in it")
        changed[edit.path] = text.replace(search, "\n" + edit.replace)[1:]
    return changed


def edit_text(edit: Edit) -> str:
    """The block as it is written."""
    return "\n".join((f"### {edit.path}", SEARCH, edit.search, DIVIDER, edit.replace, REPLACE))


def _solution(text: str) -> str:
    """What is between the tags, where there are any; PatchError unless they come once, as a pair."""
    count = text.count("<solution>")
    if count == 0:
        return text
    solutions = _SOLUTION.findall(text)
    if count != 1 or len(solutions) != 1:
        raise PatchError(f"expected one <solution>...</solution>; found {count} that open and {len(solutions)} whole")
    return str(solutions[0])


def _until(marker: str, lines: Iterator[str]) -> str:
    collected: list[str] = []
    for line in lines:
        if line == marker:
            return "\n".join(collected)
        if line in (SEARCH, DIVIDER, REPLACE):
            break
        collected.append(line)
    raise PatchError(f"expected {marker!r} after {SEARCH!r}; found no such line")
