"""What rows a stage can use: of released sets, and of each kind."""

import io
import json
from typing import Any

from cascade_rl.rl_stages.tasks.check_rows import check_rows


def task(agent: str, **fields: Any) -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": "q"}]}
    return {"responses_create_params": params, "agent_ref": {"name": agent}, **fields}


GOOD = (
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
    {"messages": [{"role": "user", "content": "q"}], "chosen": "a", "rejected": "b"},
    {"prompt": "q", "response_1": "a", "response_2": "b", "preference_strength": -2},
    task("math", expected_answer="7"),
    task("instruction_following_simple_agent", instruction_id_list=["punctuation:no_comma"], kwargs=[{}]),
)
# Rows of nvidia/Nemotron-Cascade-2-RL-data without a grading signal: 615 of them are known
UNGRADED = (
    task("mcqa_simple_agent"),
    task("structured_outputs_simple_agent"),
    task("workplace_assistant_simple_agent"),
    task("instruction_following_simple_agent"),
)


def test_rows_of_each_kind_are_usable_and_written_as_they_were() -> None:
    file = io.BytesIO()
    report = check_rows([(f"a:{number}", row) for number, row in enumerate(GOOD)], file=file)
    assert report.kept.total() == len(GOOD) and not report.dropped
    assert {label.partition(" ")[0] for label in report.kept} == {
        "demonstrations", "preference", "math", "instruction_following",
    }  # fmt: skip
    assert tuple(map(json.loads, file.getvalue().splitlines())) == GOOD


def test_rows_without_a_grading_signal_are_left_out_each_with_its_reason() -> None:
    file = io.BytesIO()
    report = check_rows([(f"a:{number}", row) for number, row in enumerate((*UNGRADED, GOOD[3]))], file=file)
    assert report.kept.total() == 1 and len(report.dropped) == len(UNGRADED)
    assert file.getvalue().count(b"\n") == 1
    assert all(examples[0].startswith("a:") for examples in report.examples.values())


def test_unknown_constraints_share_a_reason() -> None:
    rows = [
        task("instruction_following_simple_agent", instruction_id_list=[name], kwargs=[{}]) for name in ("a:b", "c:d")
    ]
    (reason,) = check_rows([("a:1", rows[0]), ("a:2", rows[1])]).dropped
    assert reason.startswith("expected an instruction id among")


def test_a_rule_leaves_out_valid_rows_only() -> None:
    report = check_rows([("a:1", GOOD[3]), ("a:2", UNGRADED[0])], rule=lambda row: "too long")
    assert report.dropped["too long"] == 1 and report.dropped.total() == 2 and report.examples["too long"] == ["a:1"]
