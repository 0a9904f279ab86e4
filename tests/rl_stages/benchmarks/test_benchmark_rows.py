"""Rows as the publishers of benchmarks release them become tasks, and their own answers score 1."""

import base64
import json
import pickle
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.benchmarks.benchmark_rows import benchmark_tasks
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.tasks.domains import domain_named

CASES = [{"input": "2\n", "output": "4\n", "testtype": "stdin"}]
LIVE = {
    "question_content": "Double a number.",
    "starter_code": "",
    "public_test_cases": json.dumps(CASES),
    "metadata": "{}",
}


def tasks(folder: Path, rows: Iterable[dict[str, Any]]) -> list[Task]:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(benchmark_tasks(str(folder / "rows.jsonl"), "bench"))


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


@pytest.mark.parametrize(
    ("row", "right", "wrong"),
    [
        ({"problem": "6 times 7?", "answer": 42}, r"\boxed{42}", r"\boxed{41}"),
        (
            {"question": "Which?", "options": ["a", "b", "c"], "answer": "B", "answer_index": 1},
            r"\boxed{B}",
            r"\boxed{A}",
        ),
        ({"question": "Which?", "choices": ["a", "b"], "answer": 0}, r"\boxed{A}", r"\boxed{B}"),
        (
            {"key": 1, "prompt": "Say hi.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
            "hi there",
            "hi, there",
        ),
    ],
    ids=["aime", "mmlu_pro", "mmlu", "ifeval"],
)
def test_the_published_answer_scores_one(tmp_path: Path, row: dict[str, Any], right: str, wrong: str) -> None:
    [task] = tasks(tmp_path, [row])
    assert task.id == "bench-000000"
    make = domain_named(task.domain).verifier
    assert make
    verifier = make()
    assert (verifier(task, right).score, verifier(task, wrong).score) == (1.0, 0.0)
    verifier.close()


def test_a_row_of_human_eval_keeps_its_own_prompt(tmp_path: Path) -> None:
    row = {
        "task_id": "HumanEval/0",
        "prompt": "def f(x):\n",
        "entry_point": "f",
        "test": "def check(f): assert f(1) == 2\n",
    }
    [task] = tasks(tmp_path, [row])
    assert (task.domain, task.metadata["problem"].function) == ("code", "f")
    assert task.metadata["problem"].prologue == "def f(x):\n\n"
    assert "```python\ndef f(x):\n```" in task.messages[0]["content"]


def test_gpqa_shows_its_options_in_an_order_of_its_own_that_stays(tmp_path: Path) -> None:
    wrong = {f"Incorrect Answer {number}": f"wrong {number}" for number in (1, 2, 3)}
    rows = [{"Question": f"{number}?", "Correct Answer": "right\n", **wrong} for number in range(8)]
    found = tasks(tmp_path, rows)
    for task in found:
        letter = task.metadata["expected_answer"]
        assert task.metadata["options"][letter] == "right"
        assert f"{letter}: right" in task.messages[0]["content"]
    assert {task.metadata["expected_answer"] for task in found} == set("ABCD")
    assert tasks(tmp_path, rows) == found


def test_hidden_tests_are_read_from_their_pickle_and_none_is_run(tmp_path: Path) -> None:
    open_row = LIVE | {"private_test_cases": json.dumps(CASES)}
    hidden = LIVE | {"private_test_cases": packed(json.dumps(CASES))}
    plain, unpacked = tasks(tmp_path, [open_row, hidden])
    assert plain.metadata == unpacked.metadata
    assert len(plain.metadata["problem"].inputs) == 2
    with pytest.raises(
        UserError, match=r"rows\.jsonl:1: expected 'private_test_cases' .* \(it would run posix\.system\)"
    ):
        tasks(tmp_path, [LIVE | {"private_test_cases": packed(_Runs())}])


class _Runs:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, ("touch /tmp/it-ran",)


def test_rows_that_their_publishers_mark_as_wrong_are_left_out(tmp_path: Path) -> None:
    row = {"question": "Which?", "choices": ["a", "b"], "answer": 0}
    assert len(tasks(tmp_path, [row | {"error_type": "ok"}, row | {"error_type": "wrong_groundtruth"}])) == 1


def test_a_row_of_no_known_form_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rows.jsonl:1: expected a row with the fields of a benchmark .* found text"):
        tasks(tmp_path, [{"text": "x"}])
