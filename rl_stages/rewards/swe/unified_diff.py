"""Writes unified diffs between two sets of text files, and applies them without fuzz, forwards or in reverse."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff as lines_diff

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*")
_NO_NEWLINE = "\n\\ No newline at end of file\n"
_UNENDED = "\0\n"  # the parser's mark for a line without a newline


class DiffError(ValueError):
    """The text is not a unified diff of these files."""


@dataclass(frozen=True)
class Hunk:
    """`start` is the index of its first line in the file, from 0. The lines of both sides keep their ends."""

    path: str
    start: int
    before: tuple[str, ...]
    after: tuple[str, ...]


def unified_diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What git would print, without its index lines. A file that only one side has counts as empty on the other."""
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path, "") != after.get(path, ""))
    return "".join(_file_diff(path, before.get(path, ""), after.get(path, "")) for path in paths)


def apply_unified_diff(files: Mapping[str, str], diff: str, *, reverse: bool = False) -> dict[str, str]:
    """`files` after the diff. A file that the diff creates is added, and one that it empties is removed.

    Raises DiffError if the lines of a hunk are not at its position, or if the text has no hunk.
    """
    changed = {path: _lines(text) for path, text in files.items()}
    moved: dict[str, int] = {}
    for hunk in parse_hunks(diff, reverse=reverse):
        lines = changed.setdefault(hunk.path, [])
        at = hunk.start + moved.get(hunk.path, 0)
        if tuple(lines[at : at + len(hunk.before)]) != hunk.before:
            raise DiffError(f"expected the hunk of {hunk.path} at line {at + 1} to match the file; it does not")
        lines[at : at + len(hunk.before)] = hunk.after
        moved[hunk.path] = moved.get(hunk.path, 0) + len(hunk.after) - len(hunk.before)
    return {path: "".join(lines) for path, lines in changed.items() if lines or not files.get(path, "gone")}


def parse_hunks(diff: str, *, reverse: bool = False) -> list[Hunk]:
    """The hunks in order. Raises DiffError if there is none, or if the line counts of one are wrong."""
    lines = iter(_lines(diff.replace(_NO_NEWLINE, _UNENDED)))
    hunks: list[Hunk] = []
    old = new = ""
    for line in lines:
        if line.startswith("--- "):
            old = _path(line)
        elif line.startswith("+++ "):
            new = _path(line)
        elif match := _HUNK.fullmatch(line.rstrip("\n")):
            hunks.append(_hunk(match, new if old == "/dev/null" else old, lines, reverse))
    if not hunks:
        raise DiffError("expected a unified diff; found no line that begins with '@@ -'")
    return hunks


def _hunk(match: re.Match[str], path: str, lines: Iterator[str], reverse: bool) -> Hunk:
    old_start, old_count, new_start, new_count = (int(number or 1) for number in match.groups())
    before: list[str] = []
    after: list[str] = []
    while len(before) < old_count or len(after) < new_count:
        line = next(lines, "")
        sides = {" ": (before, after), "\n": (before, after), "-": (before,), "+": (after,)}.get(line[:1])
        if sides is None:
            raise DiffError(f"expected {old_count} and {new_count} lines in a hunk of {path}; it ends early")
        for side in sides:
            side.append((line[1:] or "\n").removesuffix(_UNENDED))
    # With a count of 0, the start is the line after which the hunk belongs.
    if reverse:
        return Hunk(path, new_start - (new_count > 0), tuple(after), tuple(before))
    return Hunk(path, old_start - (old_count > 0), tuple(before), tuple(after))


def _file_diff(path: str, before: str, after: str) -> str:
    old = f"a/{path}" if before else "/dev/null"
    new = f"b/{path}" if after else "/dev/null"
    lines = lines_diff(_lines(before), _lines(after), old, new)
    return "".join(line if line.endswith("\n") else line + _NO_NEWLINE for line in lines)


def _path(header: str) -> str:
    name = header[4:].rstrip("\n").partition("\t")[0]
    return name if name == "/dev/null" else name.partition("/")[2]


def _lines(text: str) -> list[str]:
    """Lines with their ends. They end only at \\n, whereas `str.splitlines` also breaks at form feeds and the like."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
