r"""The boxed answer of a text: the last `\boxed{}`, and the boxes that one sentence joins to it."""

import re

MOST_CHARACTERS_BETWEEN = 70  # between two boxes of one sentence: math-verify's bound

_START = re.compile(r"\\f?box(?:ed)?(?![A-Za-z])[ \t]*(?:\n[ \t]*(?=\{))?")
_SIMPLE = re.compile(r"\\boxed\{([^{}\\]*)\}")  # most boxes
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"\\[A-Za-z]+|-?[\d.,]*\d|[A-Za-z](?![A-Za-z])")
_JOINS = re.compile(r"[,;]|\b(?:and|or)\b")
_NO_WORDS = re.compile(r"(?:[\s$.,;()\[\]/|&+=*~<>\\-]|\\[!]|\\q?quad(?![A-Za-z])|(?<=\n)[ \t]*(?:•|\d[.)])[ \t])*")
_PARTS = re.compile(
    r"[.!?:]\s|\n\s*\n|\b(?:no|not|wait|hmm|but|actually|sorry|rather|instead|correct\w*|mistake\w*|wrong|so|thus|hence|then"
    r"|therefore|because|since|final\w*|check\w*|answer)\b",
    re.IGNORECASE,
)

Span = tuple[int, int, str]  # where a box starts and ends, and its content


def last_box(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`; None without one, or when its braces do not balance.

    A `\boxed` with nothing behind it, as in "in \boxed format", is no box.
    """
    found = _last_box(text, len(text))
    return found and found[2]


def answer_boxes(text: str) -> list[str]:
    r"""The contents of the last box and of those that its sentence joins to it, in the text's order.

    `x=\boxed{2} or x=\boxed{3}` is one answer of two values (huggingface/Math-Verify#57), and a hedge where one is
    expected. `\boxed{4}. No: \boxed{5}` is a correction: the last box counts.
    """
    found = _last_box(text, len(text))
    boxes = [found] if found else []
    while found and (before := _last_box(text, found[0])) and _joined(text[before[1] : found[0]]):
        boxes.append(before)
        found = before
    return [content for _, _, content in reversed(boxes)]


def _last_box(text: str, end: int) -> Span | None:
    while (start := _last_command(text, end)) >= 0:
        if simple := _SIMPLE.match(text, start, end):
            return start, simple.end(), simple[1].strip()
        opening = _START.match(text, start, end)
        if opening and text.startswith("{", opening.end()):
            return _balanced(text, start, opening.end(), end)
        if opening and (bare := _BARE.match(text, opening.end(), end)):
            return start, bare.end(), bare[0]
        end = start
    return None


def _last_command(text: str, end: int) -> int:
    r"""Where the last `\boxed` or `\fbox` starts, or -1."""
    while (end := text.rfind("box", 0, end)) >= 0:
        if text.startswith("\\", end - 1):
            return end - 1
        if text.startswith("\\f", end - 2):
            return end - 2
    return -1


def _balanced(text: str, start: int, opening: int, end: int) -> Span | None:
    depth = 0
    for brace in _BRACE.finditer(text, opening, end):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return start, brace.end(), text[opening + 1 : brace.start()].strip()
    return None


def _joined(between: str) -> bool:
    if len(between) > MOST_CHARACTERS_BETWEEN:
        return False
    return bool(_NO_WORDS.fullmatch(between) or (_JOINS.search(between) and not _PARTS.search(between)))
