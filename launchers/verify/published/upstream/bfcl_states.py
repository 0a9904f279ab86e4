"""The program that asks BFCL's own checker of multi-turn rows: `python -m ... FOLDER`.

It runs the calls of a row and those of its ground truth on BFCL's services, and after each turn compares their states
and what the calls have returned. Each line of its input is [row, ground truth, calls], the last two with a list of
Python calls for each turn; each of its output is true or false.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

CHECKER = "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker"


def main(folder: str) -> None:
    sys.path.append(folder)
    checker: Any = import_module(CHECKER)
    for number, line in enumerate(sys.stdin):
        row, truth, calls = json.loads(line)
        steps = [[turn] for turn in calls]
        model = f"answer{number}"  # the services of a row are kept by this name
        print(json.dumps(checker.multi_turn_checker(steps, truth, row, "", model)["valid"]))


if __name__ == "__main__":
    main(sys.argv[1])
