"""`cascade verify-published` on small packages in the form of the published ones."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.verify.published import bfcl, bfcl_turns, command, human_eval, math_pairs, reasons, recorded

AREA = {
    "name": "area",
    "parameters": {
        "type": "dict",
        "properties": {"base": {"type": "float"}, "unit": {"type": "string"}},
        "required": ["base"],
    },
}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rollout(said: str, reward: float) -> dict[str, Any]:
    output = [
        {"type": "reasoning", "summary": [{"text": "\\boxed{A}?"}]},
        {"type": "message", "content": [{"type": "output_text", "text": said}]},
    ]
    params = {"input": [{"role": "user", "content": f"Which? {said}"}]}
    fields = {"options": [{"A": "red"}, {"B": "blue"}], "expected_answer": "B"}
    return {"responses_create_params": params, "response": {"output": output}, "reward": reward, **fields}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """BFCL with a question, and a server whose third reward is not ours."""
    data = tmp_path / "bfcl_eval" / "data"
    truth = [{"area": {"base": [10.0, 10], "unit": ["cm", ""]}}]
    question = {"id": "q", "question": [[{"role": "user", "content": "How large?"}]], "function": [AREA]}
    for name in (*bfcl.SETS, *bfcl.WITHOUT_CALL, *bfcl_turns.SETS):
        write(data / f"BFCL_v4_{name}.json", [question] if name in ("simple_python", "irrelevance") else [])
        truths = [{"id": "q", "ground_truth": truth}] if name == "simple_python" else []
        write(data / "possible_answer" / f"BFCL_v4_{name}.json", truths)
    rollouts = [rollout("\\boxed{B}", 1.0), rollout("\\boxed{A}", 0.0), rollout("No.", 1.0)]
    for place in ("resources_servers/mcqa", "environments/mcqa"):  # the same file twice
        write(tmp_path / place / "data" / "example_rollouts.jsonl", rollouts)
    write(tmp_path / "resources_servers" / "tavily_search" / "data" / "example_rollouts.jsonl", rollouts)
    return tmp_path


def test_each_group_has_its_line_and_each_difference_its_scores(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run([str(folder), "--json", str(tmp_path / "found.json")]) == 1
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:6]] for line in lines if line.startswith("| ")][1:]
    assert cells == [
        ["nemo-gym ?", "mcqa", "3", "2", "0 / 1"],
        ["bfcl-eval ?", "irrelevance", "1", "1", "0 / 0"],
        ["bfcl-eval ?", "irrelevance, perturbed", "1", "1", "0 / 0"],
        ["bfcl-eval ?", "simple_python", "1", "1", "0 / 0"],
        ["bfcl-eval ?", "simple_python, perturbed", "4", "4", "0 / 0"],
    ]
    assert any(line.startswith("nemo-gym mcqa 2: 1 -> 0: NOT EXPLAINED: ") for line in lines)
    assert lines[-1] == "below the floor: nemo-gym mcqa"
    groups = json.loads((tmp_path / "found.json").read_text())["groups"]
    assert [len(group["differences"]) for group in groups] == [1, 0, 0, 0, 0]


def test_a_group_may_part_as_far_as_its_floor_where_that_is_explained(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower = tuple(replace(source, floors={"mcqa": 0.66}) for source in command.SOURCES)
    monkeypatch.setattr(command, "SOURCES", lower)
    assert command.run([str(folder)]) == 1
    monkeypatch.setattr(reasons, "REASONS", (reasons.Reason("nemo-gym", "mcqa", "", "it is a test"),))
    assert command.run([str(folder)]) == 0


def test_a_folder_without_packages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected one of nemo-gym, .*; found none. Run `make published-answers`"):
        command.run([str(tmp_path)])


def test_a_version_is_that_of_a_wheel_or_in_the_name_of_an_unpacked_source(tmp_path: Path) -> None:
    for place, named in (("a_b-1.2.dist-info", "METADATA"), ("c_d-3.4.0", "PKG-INFO")):
        (tmp_path / place).mkdir()
        (tmp_path / place / named).write_text("Metadata-Version: 2.1\nName: a_b\nVersion: 1.2\n")
    assert [command.version_of(name, tmp_path) for name in ("a-b", "c-d", "e")] == ["1.2", "3.4.0", "?"]


def test_a_call_takes_the_first_accepted_value_and_leaves_out_what_it_may() -> None:
    (case, *perturbed) = bfcl.of_row("simple_python", {"id": "q", "question": [], "function": [AREA]}, [
        bfcl._call({"area": {"base": [10.0, 10], "at": [{"x": [1], "y": ["", 2]}], "all": [[]], "unit": ["", "cm"]}})
    ])  # fmt: skip
    said = {"name": "area", "arguments": {"base": 10.0, "at": {"x": 1}, "all": []}}
    assert case.turns == (f"<tool_call>{json.dumps(said)}</tool_call>",)
    assert [each.score for each in perturbed] == [0.0] * 4
    assert len({each.turns for each in (case, *perturbed)}) == 5


def test_pairs_are_read_from_a_source_that_does_not_run() -> None:
    source = 'raise ValueError\nCASES = [("$5$", "5", 1), ("5", "6", False), ("5", x, 1), ("a", "b", "c")]'
    assert list(math_pairs.pairs(source)) == [("$5$", "5", 1), ("5", "6", 0)]


def test_an_output_of_several_turns_is_what_the_model_says_in_each() -> None:
    call = {"type": "function_call", "name": "f", "arguments": '{"a": 1}'}
    shown = {"type": "function_call_output", "output": "1"}
    message = {"type": "message", "content": [{"type": "output_text", "text": "Done."}]}
    said = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    assert recorded.turns_of([call, shown, message]) == (said, "Done.")


def test_a_problem_of_human_eval_has_its_solution_and_a_stub(tmp_path: Path) -> None:
    problem = {"task_id": "HumanEval/0", "prompt": "def f(x):\n", "canonical_solution": "    return x\n"}
    problem |= {"entry_point": "f", "test": "def check(candidate):\n    assert candidate(1) == 1\n"}
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(json.dumps(problem).encode()))
    solution, stub = human_eval.cases(tmp_path)
    assert (solution.group, solution.score, stub.group, stub.score) == ("solutions", 1.0, "stubs", 0.0)
    assert "return x" in solution.turns[0] and "return None" in stub.turns[0]
    assert solution.row["entry_point"] == "f" and solution.row["agent_ref"] == {"name": "code"}
