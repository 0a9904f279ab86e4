import itertools
import json

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.tasks.demonstration import load_demonstrations
from cascade_rl.rl_stages.tasks.domains import DOMAINS
from cascade_rl.rl_stages.tasks.load_tasks import census, load_tasks, read_tasks, split_of
from cascade_rl.rl_stages.tasks.prompt_blend import open_prompts
from cascade_rl.rl_stages.tasks.row_form import RowForm

GENERATED = [name for name, domain in DOMAINS.items() if domain.lessons]
MATH_ROW = {
    "responses_create_params": {"input": [{"role": "user", "content": "What is 3 + 4?"}]},
    "agent_ref": {"name": "math"},
    "expected_answer": "7",
}


def write(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("domain", GENERATED)
@pytest.mark.slow
def test_splits_share_no_prompt_and_lose_none(domain):
    train = load_tasks(f"generate:{domain}", split="train", seed=0)
    heldout = load_tasks(f"generate:{domain}", split="heldout", seed=0)
    train_prompts, heldout_prompts = ({task.messages[0]["content"] for task in tasks} for tasks in (train, heldout))
    assert not train_prompts & heldout_prompts
    assert train_prompts | heldout_prompts == {lesson.prompt for lesson in DOMAINS[domain].lessons()}
    assert 0.07 < len(heldout) / (len(train) + len(heldout)) < 0.13
    assert len({task.id for task in (*train, *heldout)}) == len(train) + len(heldout)


@pytest.mark.parametrize("name", ["python:json:dumps", "nemo-gym:http://127.0.0.1:9", "verifiers:some-taskset"])
def test_a_row_names_no_reward_of_others_that_its_stage_does_not(tmp_path, name):
    """Its file would else say what is imported and asked. The target is not even looked at."""
    foreign = {**MATH_ROW, "agent_ref": {"name": name}}
    path = write(tmp_path / "rows.jsonl", [MATH_ROW] * 3 + [foreign])
    where = r"rows\.jsonl:4: expected 'agent_ref' to name a domain, or somebody else's reward that the .* found"
    for read in (
        lambda rewards: load_tasks(path, split="train", seed=0, heldout_fraction=0.0, form=RowForm(rewards)),
        lambda rewards: list(read_tasks(path, RowForm(rewards))),
        lambda rewards: open_prompts([path], 0, heldout_fraction=0.0, form=RowForm(rewards)),
    ):
        for rewards in ((), ("python:json:loads",)):
            with pytest.raises(UserError, match=where):
                read(rewards)
        assert read((name,)) if not name.startswith("verifiers") else True
    with pytest.raises(UserError, match=where):
        open_prompts([path], 0, heldout_fraction=0.0)


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.5])
def test_the_share_of_held_out_prompts_is_that_of_the_evaluation(fraction):
    """Of every source that has a split, and a prompt that is held out at a fraction is held out at a larger one."""
    heldout, train = (
        {task.id for task in load_tasks("generate:math", split=split, seed=0, heldout_fraction=fraction)}
        for split in ("heldout", "train")
    )
    assert len(heldout) / len(heldout | train) == pytest.approx(fraction, abs=0.02)
    wider = load_tasks("generate:math", split="heldout", seed=0, heldout_fraction=fraction + 0.1)
    assert heldout < {task.id for task in wider}
    assert census("generate:math", fraction)["heldout", "math"] == len(heldout)
    shown = load_demonstrations("generate:math@1", count=200, seed=0, heldout_fraction=fraction)
    assert {split_of(_prompt(row.messages), fraction) for row in shown} == {"train"}


def test_the_seed_sets_the_order_only():
    first, again, other = (list(load_tasks("generate:math", split="heldout", seed=seed)) for seed in (0, 0, 1))
    assert first == again != other
    assert {task.id for task in first} == {task.id for task in other}


@pytest.mark.parametrize("domain", GENERATED)
@pytest.mark.slow
def test_rows_written_to_a_file_are_the_generated_tasks(domain, tmp_path):
    path = write(tmp_path / "rows.jsonl", [lesson.row(domain) for lesson in DOMAINS[domain].lessons()])
    from_file = load_tasks(path, split="heldout", seed=0)
    generated = load_tasks(f"generate:{domain}", split="heldout", seed=0)
    assert [(t.messages, t.metadata) for t in from_file] == [(t.messages, t.metadata) for t in generated]


def _prompt(messages):
    return list(itertools.takewhile(lambda message: message["role"] != "assistant", messages))


@pytest.mark.parametrize("domain", GENERATED)
def test_demonstrations_answer_train_prompts_only_and_repeat_with_the_seed(domain):
    rows = load_demonstrations(f"generate:{domain}@0.5", count=300, seed=0)
    assert len(rows) == 300
    assert {split_of(_prompt(row.messages)) for row in rows} == {"train"}
    assert rows == load_demonstrations(f"generate:{domain}@0.5", count=300, seed=0)
    assert rows != load_demonstrations(f"generate:{domain}@0.5", count=300, seed=1)


def test_accuracy_is_the_share_of_right_demonstrations():
    by_prompt = {t.messages[0]["content"]: t for t in load_tasks("generate:math", split="train", seed=0)}
    verifier = DOMAINS["math"].verifier()
    for accuracy in (0.0, 0.5, 1.0):
        rows = load_demonstrations(f"generate:math@{accuracy}", count=1000, seed=0)
        chats = [row.messages for row in rows]
        scores = [verifier(by_prompt[user["content"]], assistant["content"]).score for user, assistant in chats]
        assert sum(scores) / len(scores) == pytest.approx(accuracy, abs=0.05)


def test_a_file_of_demonstrations_is_gone_through_before_it_repeats(tmp_path):
    chats = [[{"role": "user", "content": "q"}, {"role": "assistant", "content": str(n)}] for n in range(5)]
    path = write(tmp_path / "sft.jsonl", [{"messages": chat} for chat in chats])
    answers = [chat.messages[-1]["content"] for chat in load_demonstrations(path, count=12, seed=0)]
    assert sorted(answers[:5]) == sorted(answers[5:10]) == list("01234")
    assert len(answers) == 12


def without(key):
    return {name: value for name, value in MATH_ROW.items() if name != key}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "expected one JSON object a line; found text that is not JSON"),
        ("[" * 100_000, "expected one JSON object a line; found text that is not JSON"),
        ("[1]", "expected one JSON object a line; found a list"),
        (without("agent_ref"), "expected 'agent_ref' to be"),
        (MATH_ROW | {"agent_ref": {"name": "maths"}}, "did you mean 'math'"),
        (without("responses_create_params"), "expected 'responses_create_params' to be"),
        (MATH_ROW | {"responses_create_params": {"input": []}}, "expected a non-empty list of messages"),
        (
            MATH_ROW | {"responses_create_params": {"input": [{"role": "human", "content": "q"}]}},
            'expected {"role"',
        ),
        (without("expected_answer"), "expected 'expected_answer' to be"),
        (MATH_ROW | {"agent_ref": {"name": "mcqa"}}, "expected 'options' to be"),
        (MATH_ROW | {"agent_ref": {"name": "structured_output"}}, "expected 'schema_str' to be"),
        (MATH_ROW | {"agent_ref": {"name": "tool_call"}}, "expected 'expected_action' to"),
        (
            MATH_ROW | {"agent_ref": {"name": "instruction_following"}, "instruction_id_list": ["a:b"], "kwargs": [{}]},
            "found 'a:b'",
        ),
        (
            MATH_ROW | {"responses_create_params": MATH_ROW["responses_create_params"] | {"tools": [{}]}},
            "expected 'responses_create_params.tools' to be",
        ),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(row, message, tmp_path):
    path = write(tmp_path / "rows.jsonl", [MATH_ROW, "", row])
    with pytest.raises(UserError) as error:
        load_tasks(path, split="train", seed=0)
    assert str(error.value).startswith(f"{path}:3: ")
    assert message in str(error.value)


def test_a_malformed_demonstration_is_named_by_file_and_line(tmp_path):
    path = write(tmp_path / "sft.jsonl", [{"messages": [{"role": "user", "content": "q"}]}])
    with pytest.raises(UserError, match=r"sft\.jsonl:1: messages: expected the last message to be the assistant's"):
        load_demonstrations(path, count=1, seed=0)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.jsonl", "no such file: missing.jsonl"),
        ("generate:poetry", "found 'poetry'"),
        ("math", "no such file: math"),
    ],
)
def test_unknown_sources_are_refused(source, message):
    with pytest.raises(UserError, match=message):
        load_tasks(source, split="train", seed=0)


@pytest.mark.parametrize("source", ["generate:math", "generate:math@", "generate:math@high", "generate:math@1.5"])
def test_generated_demonstrations_need_an_accuracy(source):
    with pytest.raises(UserError, match="fraction that is right"):
        load_demonstrations(source, count=1, seed=0)


def test_an_empty_split_is_refused(tmp_path):
    with pytest.raises(UserError, match="expected rows; found none"):
        load_tasks(write(tmp_path / "rows.jsonl", []), split="train", seed=0)
    rows = write(tmp_path / "rows.jsonl", [MATH_ROW])
    with pytest.raises(UserError, match=r"for held-out scores; found none: .* withholds 0\.1 .* 1 rows"):
        load_tasks(rows, split="heldout", seed=0)
    with pytest.raises(UserError, match=r"to train on; found none: .* withholds 0\.999 .* 1 rows"):
        load_tasks(rows, split="train", seed=0, heldout_fraction=0.999)
