"""BFCL's multi-turn rows: each turn with calls is a row."""

import json
from pathlib import Path

from cascade_rl.launchers.verify.published import bfcl_turns
from tests.launchers.verify.published.test_command import write

MOVE = {"name": "mv", "parameters": {"type": "dict", "properties": {"source": {}, "destination": {}}}}


def test_each_turn_with_calls_is_a_row_that_asks_what_was_asked_so_far(tmp_path: Path) -> None:
    data = tmp_path / "bfcl_eval" / "data"
    asked = [[{"role": "user", "content": text}] for text in ("Move a.", "Which?", "Move b.")]
    for name in bfcl_turns.SETS:
        first = name == bfcl_turns.SETS[0]
        write(data / f"BFCL_v4_{name}.json", [{"id": "r", "question": asked}] if first else [])
        truth = [{"id": "r", "ground_truth": [["mv('a', destination='x')"], [], ["mv(source='b',destination='x')"]]}]
        write(data / "possible_answer" / f"BFCL_v4_{name}.json", truth if first else [])
    write(data / "multi_turn_func_doc" / "files.json", [MOVE])
    right = [case for case in bfcl_turns.cases(tmp_path) if case.score == 1]
    calls = [{"name": "mv", "arguments": {"source": source, "destination": "x"}} for source in "ab"]
    assert [case.turns for case in right] == [(f"<tool_call>{json.dumps(call)}</tool_call>",) for call in calls]
    assert [case.id for case in right] == ["r/0", "r/2"]
    (shown,) = right[1].row["responses_create_params"]["input"]
    assert shown["content"] == "Move a.\nWhich?\nMove b."
