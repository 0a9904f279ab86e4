"""The program in an answer: the last fenced block that can be one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cascade_rl.rl_stages.rewards.verifiers.programs.code_rows import Problem, definition

# A line with one run of backticks or tildes: what stands before it, the run, and what follows.
_FENCE = re.compile(r"^([^`~\n]*)(`{3,}|~{3,})([^`~\n]*)$\n?", re.MULTILINE)
_NAME = re.compile(r"[\w+#]+")
_NAMES = {"python": ("python", "python3", "py", "py3"), "cpp": ("cpp", "c++", "cc", "cxx", "c", "cpp17", "cpp20")}
_ALL_NAMES = {name for names in _NAMES.values() for name in names}
# What a block is searched for, in this order.
_PROGRAM = {
    "python": (re.compile(r"\binput\b|\bstdin\b|open\(0\)|\bos\.read\b|\bfileinput\b"), re.compile(r"\bprint\b|write")),
    "cpp": (re.compile(r"\bmain\s*\("),),
}
_SOLUTION = re.compile(r"^class[ \t]+Solution\b", re.MULTILINE)


@dataclass(frozen=True)
class _Block:
    name: str
    text: str
    closed: bool


def program_in(answer: str, problem: Problem) -> str | None:
    """The content of a fenced block, without the fence's own indentation; None if the answer has none.

    Blocks of another language, such as a shell's or sample output, and one that is not closed count only where there is
    no other. Of the rest it is the last that defines the function, reads the input or at least prints; after it there
    may be its output, its tests or an example of its use. Otherwise it is the last with the language's name, or else
    the last.
    """
    blocks = [block for block in _blocks(answer) if block.text.strip()]
    ours = [block for block in blocks if not block.name or block.name in _NAMES[problem.language]]
    found = [block for block in ours if block.closed] or ours or blocks
    for sign in _signs(problem):
        if whole := [block for block in found if sign.search(block.text)]:
            return whole[-1].text
    named = [block for block in found if block.name]
    return (named or found)[-1].text if found else None


def _signs(problem: Problem) -> Sequence[re.Pattern[str]]:
    if problem.function is None:
        return _PROGRAM[problem.language]
    return definition(problem.function), _SOLUTION


def _blocks(answer: str) -> Iterator[_Block]:
    """As in CommonMark, with two additions. A fence with a name opens a block even if the one before was left open.
    Text may stand before an opening fence with a language's name, and before a closing one."""
    opening: re.Match[str] | None = None
    for mark in _FENCE.finditer(answer):
        before, run, name = mark.groups()
        if opening is None:
            opening = mark if not before.strip() or _language(mark) in _ALL_NAMES else None
        elif not run.startswith(opening[2]) or (not before.strip() and len(before) > _indent(opening) + 3):
            continue  # it belongs to the block
        elif not name.strip():
            yield _block(answer, opening, mark.start() + len(before), closed=True)
            opening = None
        elif not before.strip():
            yield _block(answer, opening, mark.start(), closed=False)
            opening = mark
    if opening is not None:
        yield _block(answer, opening, len(answer), closed=False)


def _block(answer: str, opening: re.Match[str], end: int, *, closed: bool) -> _Block:
    lines = answer[opening.end() : end].split("\n")
    indent = _indent(opening)
    text = "\n".join(line[min(indent, len(line) - len(line.lstrip())) :] for line in lines)
    return _Block(_language(opening), text, closed)


def _language(opening: re.Match[str]) -> str:
    """The first word after the fence; empty if there is none."""
    name = _NAME.search(opening[3])
    return name[0].lower() if name else ""


def _indent(opening: re.Match[str]) -> int:
    return 0 if opening[1].strip() else len(opening[1])
