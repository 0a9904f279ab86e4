"""Rows in the form of the sets that Cascade 1 released, written by hand, become tasks that their verifiers score."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.data.released import MATH_INSTRUCTION, convert, converted
from cascade_rl.rl_stages.tasks.check_rows import check_rows
from cascade_rl.rl_stages.tasks.domains import rules_of
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

MATH = {"problem": "What is $2 + 5$?", "answer": "7", "source": "NuminaMath-CoT"}
INSTRUCTIONS = {
    "prompt": [{"content": "Say no commas and end with Bye.", "role": "user"}],
    "instruction_id_list": ["punctuation:no_comma", "startend:end_checker"],
    "kwargs": [{"end_phrase": None, "num_words": None}, {"end_phrase": "Bye", "num_words": None}],
    "index": 0,
}
CHAT = {"prompt": [{"role": "user", "content": "Hello?"}], "category": "chat", "data_source": "x"}
FILES = [{"file_path": "pkg/a.py", "content": "x = 1\n"}, {"file_path": "pkg/b.py", "content": "y = 1\n"}]
SWE = {
    "prompt": "Repair pkg/a.py.",
    "original_prompt": "x must be 2",
    "golden_patch": "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
    "relevant_file_contents": FILES,
    "instance_id": "pkg-1",
    "source": "SWE-Gym",
}


def judged(row: dict[str, Any], answer: str) -> tuple[Task, Verdict]:
    task = parse_task(convert(row), "here", "1")
    verifier = rules_of(task.domain, "test")()
    try:
        return task, verifier(task, answer)
    finally:
        verifier.close()


@pytest.mark.parametrize(
    ("row", "domain", "right", "wrong"),
    [
        (MATH, "math", r"\boxed{7}", r"\boxed{8}"),
        (INSTRUCTIONS, "instruction_following", "No commas here. Bye", "One, two. Bye"),
        (
            SWE,
            "swe_agentless",
            "### pkg/a.py\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE",
            "### pkg/b.py\n<<<<<<< SEARCH\ny = 1\n=======\ny = 2\n>>>>>>> REPLACE",
        ),
    ],
)
def test_a_released_row_is_scored(row: dict[str, Any], domain: str, right: str, wrong: str) -> None:
    task, verdict = judged(row, right)
    assert task.domain == domain and verdict.score == 1.0
    assert judged(row, wrong)[1].score == 0.0


def test_prompts_are_the_released_ones_and_problems_ask_for_a_box() -> None:
    asked = [parse_task(convert(row), "here", "1").messages[0]["content"] for row in (MATH, INSTRUCTIONS, CHAT, SWE)]
    assert asked == [
        f"{MATH['problem']}\n\n{MATH_INSTRUCTION}",
        "Say no commas and end with Bye.",
        "Hello?",
        "Repair pkg/a.py.",
    ]
    assert convert(CHAT)["agent_ref"] == {"name": "rlhf"} and convert(CHAT)["category"] == "chat"


def test_parquet_with_all_kwargs_of_all_constraints_reads_as_released(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([INSTRUCTIONS, {**INSTRUCTIONS, "index": 1}]), tmp_path / "a.parquet")
    report = check_rows(converted(str(tmp_path)))
    assert report.kept.total() == 2 and not report.dropped


BROKEN = (
    {**MATH, "answer": None},
    {**MATH, "problem": None},
    {**INSTRUCTIONS, "instruction_id_list": ["punctuation:no_comma", "unknown:constraint"]},
    {**INSTRUCTIONS, "kwargs": []},
    {**CHAT, "prompt": []},
    {**SWE, "relevant_file_contents": '{"pkg/a.py": "x = 1"}'},
    {**SWE, "relevant_file_contents": FILES[1:]},
    {**SWE, "golden_patch": "no diff"},
    {"question": "?"},
)


@pytest.mark.parametrize("row", BROKEN, ids=range(len(BROKEN)))
def test_what_cannot_be_scored_is_an_error(row: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="expected"):
        parse_task(convert(row), "here", "1")
