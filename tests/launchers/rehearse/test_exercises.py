"""The rows of each domain: right answers score 1, and prompts are as long as the published ones."""

from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import mistral_common
import pytest
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from cascade_rl.launchers.rehearse.demonstrations import LEARNED, demonstrations
from cascade_rl.launchers.rehearse.exercises import Exercise, exercises
from cascade_rl.launchers.rehearse.row_lengths import LENGTHS, Length, lengths
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.chat_templates import NAMED
from cascade_rl.rl_stages.data.tokenizer import encode_demonstration, train_tokenizer
from cascade_rl.rl_stages.environments.environment import End
from cascade_rl.rl_stages.sandbox import SandboxUnavailable
from cascade_rl.rl_stages.tasks.demonstration import parse_demonstration
from cascade_rl.rl_stages.tasks.domains import DOMAINS
from cascade_rl.rl_stages.tasks.load_tasks import parse_task, split_of

BY_RULES = ("instruction_following", "math", "mcqa", "structured_output", "long_context", "swe_agentless")
COUNT = 24


@cache
def of(domain: str) -> list[Exercise]:
    return exercises(domain, COUNT, LENGTHS[domain])


@cache
def tekken() -> Tekkenizer:
    return Tekkenizer.from_file(Path(mistral_common.__file__).parent / "data" / "tekken_240911.json")


@cache
def tokenizer(template: str) -> Any:
    found = train_tokenizer([])
    found.chat_template = template
    return found


def task(exercise: Exercise) -> Task:
    return parse_task(exercise.row, "row", "id")


def size(text: str) -> int:
    return len(tekken().encode(text, bos=False, eos=False))


def prompt_size(exercise: Exercise) -> int:
    """Tokens of the prompt in the template of Nemotron-3."""
    asked = task(exercise)
    render = tokenizer(NAMED["nemotron3"]).apply_chat_template
    return size(render(list(asked.messages), tools=list(asked.tools), tokenize=False, add_generation_prompt=True))


def said(messages: list[dict[str, Any]], tools: Any, template: str = NAMED["nemotron3"]) -> list[str]:
    """The text of each turn of the model."""
    found = []
    for end, message in enumerate(messages, start=1):
        if message["role"] == "assistant":
            ((ids, own),) = encode_demonstration(tokenizer(template), messages[:end], tools, turns="last")
            found.append(tokenizer(template).decode([i for i, learned in zip(ids, own, strict=True) if learned][:-1]))
    return found


def taught(exercise: Exercise, template: str = NAMED["nemotron3"]) -> list[str]:
    (row,) = demonstrations([exercise], thinking=True)
    shown = parse_demonstration(row, "row")
    return said(list(shown.messages), shown.tools, template)


@pytest.mark.process
@pytest.mark.parametrize("domain", BY_RULES)
def test_right_answers_score_1(domain: str) -> None:
    with closing(DOMAINS[domain].verifier()) as verifier:
        for exercise in of(domain):
            assert verifier(task(exercise), exercise.answer[-1]["content"]).score == 1
            assert not exercise.short or verifier(task(exercise), *taught(exercise)).score == 1


@pytest.mark.sandbox
def test_right_programs_pass_their_tests() -> None:
    try:
        verifier = DOMAINS["code"].verifier()
    except SandboxUnavailable as why:
        pytest.skip(str(why))
    with closing(verifier):
        assert [verifier(task(exercise), exercise.answer[-1]["content"]).score for exercise in of("code")] == [
            1
        ] * COUNT


def test_right_calls_leave_the_right_office() -> None:
    with closing(DOMAINS["workplace"].environment()) as environment:
        assert [played(environment, exercise) for exercise in of("workplace") if exercise.short] == [1] * 20


@pytest.mark.sandbox
def test_right_commands_repair_the_repository() -> None:
    try:
        environment = DOMAINS["swe_agentic"].environment()
    except SandboxUnavailable as why:
        pytest.skip(str(why))
    with closing(environment):
        assert [played(environment, exercise) for exercise in of("swe_agentic")[1:3]] == [1, 1]


def played(environment: Any, exercise: Exercise) -> float | None:
    """The score of the demonstration's turns; what the tools reply must be what it shows."""
    replies = [message for message in exercise.answer if message["role"] == "tool"]
    episode = environment.start(task(exercise))
    with closing(episode):
        for number, text in enumerate(taught(exercise)):
            answer = episode.step(text)
            if isinstance(answer, End):
                assert number == len(replies)
                return answer.verdict.score
            assert answer.messages == (replies[number],)
    raise AssertionError("the demonstration does not reach the end")


@pytest.mark.slow
@pytest.mark.parametrize("domain", LENGTHS)
def test_prompts_are_as_long_as_the_published_ones(domain: str) -> None:
    length, found = LENGTHS[domain], of(domain)
    assert 0.94 * length.longest <= prompt_size(found[4]) <= 1.04 * length.longest
    for exercise in (found[0], *found[5:7]):
        assert 0.9 * length.typical <= prompt_size(exercise) <= 1.25 * length.typical
    assert max(prompt_size(exercise) for exercise in found if exercise.short) < 448


@pytest.mark.parametrize("domain", LENGTHS)
def test_a_smaller_count_gives_the_first_ones_of_both_splits(domain: str) -> None:
    found = of(domain)
    assert [exercise.row for exercise in exercises(domain, 8, LENGTHS[domain])] == [item.row for item in found[:8]]
    assert [split_of(task(exercise).messages) for exercise in found] == ["heldout"] * 4 + ["train"] * 20
    assert len({str(exercise.row["responses_create_params"]) for exercise in found}) == COUNT


@pytest.mark.slow
@pytest.mark.parametrize("template", [NAMED["nemotron3"], NAMED["cascade1"]])
@pytest.mark.parametrize("domain", LENGTHS)
def test_demonstrations_are_short_and_ask_what_rl_asks(domain: str, template: str) -> None:
    shortest = filter_short(domain)[:LEARNED]
    for exercise, row in zip(shortest, demonstrations(of(domain), thinking=True), strict=True):
        shown = parse_demonstration(row, "row")
        asked = task(exercise)
        assert shown.messages[: len(asked.messages)] == asked.messages and shown.tools == asked.tools
        assert len(encode_demonstration(tokenizer(template), shown.messages, shown.tools)) == 1
        assert all(size(text) <= 40 for text in taught(exercise, template))


def filter_short(domain: str) -> list[Exercise]:
    return [exercise for exercise in of(domain) if exercise.short]


@pytest.mark.parametrize(
    ("published", "longest"),
    [("nemotron_3_nano_30b_a3b", 65_536), ("qwen3_8b", 24_576), ("qwen3_14b", 32_768), (None, 65_536)],
)
def test_repairs_have_the_lengths_of_their_model(published: str | None, longest: int) -> None:
    assert lengths(published)["swe_agentless"] == Length(8_192, longest)


def test_the_longest_repair_shows_five_files_of_which_one_is_wrong() -> None:
    files = of("swe_agentless")[4].row["files"]
    assert len(files) == 5 and len(files["f.py"]) < 200
    for name, source in files.items():
        compile(source, name, "exec")
