"""The pairs of math-verify's own tests, from its source distribution: a gold answer, a prediction, whether they agree.

Taken are those whose prediction is a formula or a box alone; ours must be in a box, and prose is not read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from cascade_rl.launchers.verify.published.case import Case, asking

FORMULA = re.compile(r"\$+([^$]+)\$+|\\\((.+)\\\)|\\\[(.+)\\\]", re.DOTALL)
PLAIN = re.compile(r"[-+]?[\d.,/]+")


def cases(folder: Path) -> Iterator[Case]:
    for path in sorted(folder.glob("math_verify-*/tests/test_*.py")):
        for number, (gold, given, agree) in enumerate(pairs(path.read_text())):
            row = asking("What is it?", "math", expected_answer=_formula(gold) or gold)
            answer = given if "\\boxed" in given else _boxed(given)
            if answer and (_formula(gold) or PLAIN.fullmatch(gold)):
                yield Case(path.stem, f"{path.stem}/{number}", row, (answer,), float(agree))


def pairs(source: str) -> Iterator[tuple[str, str, int]]:
    """Every tuple (text, text, 0 or 1) that the source has, and nothing of it runs."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Tuple) and len(node.elts) == 3:
            values = [item.value for item in node.elts if isinstance(item, ast.Constant)]
            if [type(value) for value in values] in ([str, str, int], [str, str, bool]):
                yield str(values[0]), str(values[1]), int(bool(values[2]))


def _boxed(text: str) -> str | None:
    formula = _formula(text) or (text if PLAIN.fullmatch(text) else None)
    return f"\\boxed{{{formula}}}" if formula else None


def _formula(text: str) -> str | None:
    found = FORMULA.fullmatch(text.strip())
    return next(part for part in found.groups() if part).strip() if found else None
