"""What NeMo-Gym's own tests expect of the servers whose rules a domain here has: each (input, reward) of theirs.

The tests run by pytest in a process of their own, where Gym is a stand-in (`gym_recorder.py`) and no assertion ends
one. So no reward here is Gym's own; each is the one that its authors wrote down.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cascade_rl.launchers.verify.published.case import Case
from cascade_rl.launchers.verify.published.recorded import domain_of, has_rules, said_in
from cascade_rl.launchers.verify.published.upstream import gym_recorder

MOST_SECONDS = 120
PROMPT = {"input": [{"role": "user", "content": "(not in the test)"}]}


def cases(folder: Path) -> Iterator[Case]:
    """One for each comparison of a reward, in the group `SERVER, its tests`."""
    for test in sorted(folder.glob("resources_servers/*/tests/test_*.py")):
        server, source = test.parents[1].name, test.read_text()
        if ".reward" in source and has_rules(domain_of(server)):
            notes = _notes(gym_recorder.without_asserts(source))
            yield from (_case(server, number, note) for number, note in enumerate(notes) if _is_written(note))


def _notes(source: str) -> list[dict[str, Any]]:
    """What a file of tests notes, in a process of its own."""
    with TemporaryDirectory() as place:
        notes, test = Path(place) / "notes.jsonl", Path(place) / "test_app.py"
        test.write_text(source)
        options = ("-qs", "-c", os.devnull, "--rootdir", place, "--import-mode=importlib", "-p", gym_recorder.__name__)
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", gym_recorder.NOTES: str(notes)}
        command = (sys.executable, "-m", "pytest", *options, str(test))
        subprocess.run(
            command,
            env=os.environ | alone,
            cwd=place,
            timeout=MOST_SECONDS,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []


def _is_written(note: dict[str, Any]) -> bool:
    """Whether the test says what the model says. A stand-in is an empty object."""
    output = note["output"]
    texts = [part.get("text", "") for item in output or () for part in item.get("content") or ()]
    return isinstance(output, list) and all(isinstance(text, str) for text in texts)


def _case(server: str, number: int, note: dict[str, Any]) -> Case:
    domain, row = domain_of(server), {name: value for name, value in note["row"].items() if value is not None}
    params = {name: value for name, value in row.get("responses_create_params", {}).items() if value}
    tools = [{"type": "function", "name": row["tool_name"], "parameters": {}}] if "tool_name" in row else []
    row |= {"responses_create_params": PROMPT | {"tools": tools} | params, "agent_ref": {"name": domain}}
    turns = said_in(note["output"], domain)
    ended = (*turns, "Done.") if domain == "workplace" else turns  # the tests leave out the last turn
    return Case(f"{server}, its tests", f"{number} {note['id']}", row, ended, note["reward"])
