"""HumanEval: each canonical solution passes its tests, and a function that returns nothing does not."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from cascade_rl.launchers.verify.published.case import Case, asking

STUB = "    return None\n"


def cases(folder: Path) -> Iterator[Case]:
    for path in folder.rglob("HumanEval.jsonl.gz"):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            problem = json.loads(line)
            row = asking(problem["prompt"], "code", **problem)
            for group, body, score in (("solutions", problem["canonical_solution"], 1.0), ("stubs", STUB, 0.0)):
                yield Case(group, problem["task_id"], row, (f"```python\n{body}\n```",), score)
