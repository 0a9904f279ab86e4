import json
from dataclasses import replace

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.data.rows import RowError
from cascade_rl.rl_stages.tasks.check_rows import check_rows
from cascade_rl.rl_stages.tasks.demonstration import parse_demonstration
from cascade_rl.rl_stages.tasks.load_tasks import load_tasks, parse_task
from cascade_rl.rl_stages.tasks.pairs import parse_pair
from cascade_rl.rl_stages.tasks.row_form import RowForm
from cascade_rl.rl_stages.tasks.stage_domains import sources_of

USER = {"role": "user", "content": "What is 3 + 4?"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "7"}
OTHER = {"role": "assistant", "content": "8"}
GYM = {"responses_create_params": {"input": [USER]}, "agent_ref": {"name": "math"}, "expected_answer": "7"}
VERL = {
    "data_source": "sums",
    "prompt": [SYSTEM, USER],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "7"},
    "extra_info": {"index": 0},
}
STAGE = GrpoStage(
    name="sums", domain="math", data=("sums.jsonl",), steps=1, token_budget=64, sampling=Sampling(max_new_tokens=8)
)


@pytest.mark.parametrize(
    ("row", "columns", "messages"),
    [
        ({"prompt": "What is 3 + 4?", "expected_answer": "7"}, {}, [USER]),
        ({"prompt": [SYSTEM, USER], "expected_answer": "7"}, {}, [SYSTEM, USER]),
        ({"question": "What is 3 + 4?", "answer": "7"}, {"prompt": "question", "expected_answer": "answer"}, [USER]),
        (VERL, {"expected_answer": "reward_model.ground_truth"}, [SYSTEM, USER]),
        (GYM, {}, [USER]),
        ({**GYM, "gold": "7", "expected_answer": "?"}, {"expected_answer": "gold"}, [USER]),
    ],
)
def test_a_stage_with_one_domain_reads_the_rows_of_others(row, columns, messages):
    task = parse_task(row, "here", "id", RowForm.of(replace(STAGE, columns=columns)))
    assert (task.domain, list(task.messages), task.metadata) == ("math", messages, parse_task(GYM, "", "").metadata)


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        ({"question": "3 + 4?"}, {}, r"here: expected 'prompt', .* found the columns \['question'\]"),
        ({"prompt": "3 + 4?"}, {"columns": {"prompt": "q"}}, r"here: expected the column 'q', .* found \['prompt'\]"),
        ({"prompt": "3 + 4?", "a": "7"}, {"columns": {"expected_answer": "a.b"}}, "here: expected the column 'a.b'"),
        (
            {"prompt": "3 + 4?"},
            {"domains": ("math", "code")},
            "here: .*'agent_ref' .* give the stage one domain",
        ),
        ({"prompt": ""}, {}, "here: .*expected_answer"),
        ({"prompt": []}, {}, "here: responses_create_params.input: expected a non-empty list of messages"),
    ],
)
def test_a_row_that_does_not_say_what_is_asked_names_what_is_missing(row, changes, message):
    with pytest.raises(RowError, match=message):
        parse_task(row, "here", "id", RowForm.of(replace(STAGE, **changes)))


def test_a_reward_of_ones_own_sees_every_column_but_the_prompt():
    domain = "python:json:loads"
    row = {"prompt": "Count.", "answer": "7", "level": 2}
    task = parse_task(row, "here", "id", RowForm.of(replace(STAGE, domain=domain)))
    own = {name: value for name, value in task.metadata.items() if name not in ("agent_ref", "responses_create_params")}
    assert (task.domain, own) == (domain, {"answer": "7", "level": 2})


def test_held_out_prompts_are_read_as_those_of_training(tmp_path):
    path = tmp_path / "sums.jsonl"
    rows = [{"q": f"What is {number} + 4?", "a": str(number + 4)} for number in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage = replace(STAGE, data=(str(path),), columns={"prompt": "q", "expected_answer": "a"})
    ((source, form),) = sources_of("math", [stage]).items()
    found = [
        task.messages[0]["content"]
        for split in ("train", "heldout")
        for task in load_tasks(source, split=split, seed=1, form=form)
    ]
    assert sorted(found) == sorted(row["q"] for row in rows)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, ANSWER]},
        {"prompt": "What is 3 + 4?", "completion": "7"},
        {"prompt": [USER], "completion": [ANSWER]},
        {"prompt": [USER], "completion": "7"},
    ],
)
def test_demonstrations_of_trl(row):
    assert list(parse_demonstration(row, "here").messages) == [USER, ANSWER]
    assert dict(check_rows([("here", row)]).kept) == {"demonstrations": 1}


def test_columns_of_demonstrations():
    stage = SftStage(
        name="sft",
        domain="sft",
        data=("a.jsonl",),
        steps=1,
        token_budget=64,
        columns={"prompt": "q", "completion": "a"},
    )
    found = parse_demonstration({"q": "What is 3 + 4?", "a": "7"}, "here", RowForm.of(stage))
    assert list(found.messages) == [USER, ANSWER]
    with pytest.raises(UserError, match="here: expected the column 'q'"):
        parse_demonstration({"messages": [USER, ANSWER]}, "here", RowForm.of(stage))
    with pytest.raises(UserError, match="here: expected 'prompt' and 'completion' to be texts or messages"):
        parse_demonstration({"prompt": 3, "completion": "7"}, "here")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER], "chosen": "7", "rejected": "8"},
        {"prompt": "What is 3 + 4?", "chosen": "7", "rejected": "8"},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [OTHER]},
        {"chosen": [USER, ANSWER], "rejected": [USER, OTHER]},
    ],
)
def test_preferences_of_trl(row):
    pair = parse_pair(row, "here")
    assert pair and (list(pair.messages), pair.chosen, pair.rejected) == ([USER], "7", "8")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"chosen": [USER, ANSWER], "rejected": [SYSTEM, USER, OTHER]}, "here: expected 'prompt', or conversations"),
        ({"chosen": "7", "rejected": "8"}, "here: expected 'prompt', or conversations"),
        ({"prompt": "3 + 4?", "chosen": [USER], "rejected": [OTHER]}, "here: expected 'chosen' to be non-empty text"),
    ],
)
def test_preferences_without_a_prompt_or_an_answer(row, message):
    with pytest.raises(RowError, match=message):
        parse_pair(row, "here")
