"""The program in an answer: the last closed fence after the reasoning."""

import re

_FENCE = re.compile(r"^[ \t]*```[^\n`]*$\n?", re.MULTILINE)


def last_program(answer: str) -> str | None:
    """The content of the last closed fence, with its indentation; None without one, or if it is blank.

    Fences pair up from the top, so that text between two programs is never taken for one.
    """
    marks = list(_FENCE.finditer(answer))
    if len(marks) < 2:
        return None
    opening = marks[len(marks) // 2 * 2 - 2]
    program = answer[opening.end() : marks[len(marks) // 2 * 2 - 1].start()]
    return program if program.strip() else None
