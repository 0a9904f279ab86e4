"""SEARCH/REPLACE patches, the answer format of SWE-RL and of both papers' agentless repair.

    <solution>
    ```python
    ### path/to/file.py
        lines that are there
        lines that replace them
        ```
    </solution>

The tags and the fences are optional, because the path and the marker show where a block begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

SEARCH, DIVIDER, REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"

MAX_GROWTH = 100_000  # characters of a file; a few edits that each double some lines could fill the memory
_FENCE = re.compile(r"```\w*")


class PatchError(ValueError):
    """The text is not a patch of these files."""


@dataclass(frozen=True)
class Edit:
    """One block: replaces the lines `search` of the file at `path` by `replace`."""

    path: str
    search: str
    replace: str


def parse_edits(text: str) -> list[Edit]:
    """The blocks of an answer, in order. Raises PatchError if there is none or one is malformed.

    Lines end at \\n or \\r\\n alone, whereas `str.splitlines` also breaks at form feeds, U+2028 and the like.
    """
    lines = (_marker(line.removesuffix("\r")) for line in _solution(text).split("\n"))
    edits: list[Edit] = []
    path = None
    for line in lines:
        if line.startswith("### "):
            path = line.removeprefix("### ").strip()
        elif line == SEARCH:
            if not path:
                raise PatchError(f"expected a line '### path' before {SEARCH!r}; found none")
            edits.append(Edit(path, _until(DIVIDER, lines), _until(REPLACE, lines)))
        elif line.strip() and not _FENCE.fullmatch(line.rstrip()):
            raise PatchError(f"expected '### path', {SEARCH!r} or a fence; found {line[:80]!r}")
    if not edits:
        raise PatchError(f"expected a block that begins with {SEARCH!r}; found none")
    return edits


def apply_edits(files: Mapping[str, str], edits: Sequence[Edit]) -> dict[str, str]:
    """`files` after the edits. Every occurrence at the start of a line is replaced, as in SWE-RL. The new lines end as
    those of the file do.

    Raises PatchError if a file does not exist, does not contain the lines, or grows by more than MAX_GROWTH.
    """
    changed = dict(files)
    for edit in edits:
        if edit.path not in changed:
            raise PatchError(f"expected a path among {', '.join(sorted(files)[:5])}; found {edit.path!r}")
        changed[edit.path] = _applied(changed[edit.path], edit, len(files[edit.path]) + MAX_GROWTH)
    return changed


def _applied(file: str, edit: Edit, longest: int) -> str:
    for end in ("\r\n", "\n") if "\r\n" in file else ("\n",):
        search, replace = ("\n" + lines.replace("\n", end) for lines in (edit.search, edit.replace))
        if edit.search and (count := ("\n" + file).count(search)):
            if len(file) + count * (len(replace) - len(search)) > longest:
                raise PatchError(f"expected {edit.path} to grow by at most {MAX_GROWTH} characters; it grows by more")
            return ("\n" + file).replace(search, replace)[1:]
    raise PatchError(f"expected lines of {edit.path}; found {edit.search[:80]!r}, which is not in it")


def edit_text(edit: Edit) -> str:
    """The edit as a block of the answer format."""
    return "\n".join((f"### {edit.path}", SEARCH, edit.search, DIVIDER, edit.replace, REPLACE))


def _solution(text: str) -> str:
    """The text between the tags, or all of it if there are none. Raises PatchError unless there is exactly one pair."""
    count = text.count("<solution>")
    if count == 0:
        return text
    solution, closed, _ = text.partition("<solution>")[2].partition("</solution>")
    if count != 1 or not closed:
        raise PatchError(f"expected one <solution>...</solution>; found {count} that open")
    return solution


def _marker(line: str) -> str:
    """A marker without the white space after it; any other line as it is."""
    return mark if (mark := line.rstrip()) in (SEARCH, DIVIDER, REPLACE) else line


def _until(marker: str, lines: Iterator[str]) -> str:
    collected: list[str] = []
    for line in lines:
        if line == marker:
            return "\n".join(collected)
        if line in (SEARCH, DIVIDER, REPLACE):
            break
        collected.append(line)
    raise PatchError(f"expected {marker!r} after {SEARCH!r}; found no such line")
