"""Episodes whose score is known: an agent that applies the golden patch, and one that adds a comment."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence

from cascade_rl.rl_stages.core.exemplar import Exemplar
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.swe.exemplars import known_patches
from cascade_rl.rl_stages.rewards.swe.patch import Edit

# Reads [path, search, replace] from its argument, and replaces lines as SEARCH/REPLACE does.
EDITOR = """import json, sys
for path, search, replace in json.loads(sys.argv[1]):
    with open(path, newline="") as file:
        text = file.read()
    with open(path, "w", newline="") as file:
        file.write(("\\n" + text).replace("\\n" + search, "\\n" + replace)[1:])
"""


def exemplars(tasks: Iterable[Task]) -> Sequence[Sequence[Exemplar]]:
    """The first tasks with both episodes. One of them is enough."""
    return [[Exemplar(name, task, _turns(golden), _turns(empty)) for name, task, golden, empty in known_patches(tasks)]]


def _turns(edits: Sequence[Edit]) -> tuple[str, str]:
    given = json.dumps([(edit.path, edit.search, edit.replace) for edit in edits])
    return _call("bash", command=shlex.join(["python", "-c", EDITOR, given])), _call("submit")


def _call(name: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
