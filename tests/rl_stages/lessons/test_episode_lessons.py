"""Lessons in turns: what a demonstration shows is what the environment says, and it is worth what it claims."""

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.data.tokenizer import encode_demonstration, encode_prompt, encode_reply, train_tokenizer
from cascade_rl.rl_stages.environments.environment import End, Environment
from cascade_rl.rl_stages.sandbox import SandboxUnavailable
from cascade_rl.rl_stages.tasks.demonstration import load_demonstrations
from cascade_rl.rl_stages.tasks.domains import DOMAINS
from cascade_rl.rl_stages.tasks.load_tasks import load_tasks, parse_task

EPISODIC = ("workplace", "swe_agentic", "math_python")
LONGEST = 256  # max_model_len of the tiny cascade


@pytest.fixture(params=EPISODIC)
def domain(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def environment(domain: str) -> Iterator[Environment]:
    try:
        environment = DOMAINS[domain].environment()  # type: ignore[misc]
    except SandboxUnavailable as why:
        pytest.skip(str(why))
    yield environment
    environment.close()


def conversation(domain: str, accuracy: float, seed: int) -> tuple[dict[str, Any], ...]:
    (demonstration,) = load_demonstrations(f"generate:{domain}@{accuracy}", count=1, seed=seed)
    return demonstration.messages


@lru_cache
def tiny_tokenizer(domain: str) -> Any:
    texts = [found.messages for found in load_demonstrations(f"generate:{domain}@0.5", count=300, seed=0)]
    return train_tokenizer(texts)


def played(environment: Environment, tokenizer: Any, domain: str, messages: tuple[dict[str, Any], ...]) -> Verdict:
    """The turns of a demonstration as the sampler would say them; what is shown must be what the demonstration has."""
    lesson = next(lesson for lesson in DOMAINS[domain].lessons() if lesson.prompt == messages[0]["content"])
    episode = environment.start(parse_task(lesson.row(domain), "row", "t"))
    try:
        for at, message in enumerate(messages[1:], start=1):
            if message["role"] != "assistant":
                continue
            ((ids, learned),) = encode_demonstration(tokenizer, messages[: at + 1], turns="last")
            text = tokenizer.decode([i for i, own in zip(ids, learned, strict=True) if own][:-1])
            answer = episode.step(text)
            if isinstance(answer, End):
                assert at == len(messages) - 1
                return answer.verdict
            assert answer.messages == (messages[at + 1],)
    finally:
        episode.close()
    raise AssertionError("the demonstration does not reach the end")


@pytest.mark.sandbox
def test_demonstrations_are_worth_what_they_claim(environment: Environment, domain: str) -> None:
    tokenizer = tiny_tokenizer(domain)
    for seed in range(2):
        assert played(environment, tokenizer, domain, conversation(domain, 1.0, seed)).score == 1.0
        assert played(environment, tokenizer, domain, conversation(domain, 0.0, seed)).score == 0.0


def test_lessons_suit_the_tiny_model(domain: str) -> None:
    lessons, tokenizer = list(DOMAINS[domain].lessons()), tiny_tokenizer(domain)
    assert len({lesson.prompt for lesson in lessons}) == len(lessons) >= 400
    assert max(len(lesson.prompt.split()) for lesson in lessons) <= 60
    for lesson in lessons[::20]:
        messages = lesson.demonstration(1.0, random.Random(0))["messages"]
        ((ids, learned),) = encode_demonstration(tokenizer, messages)
        assert len(ids) <= LONGEST
        assert sum(learned) <= 100
    assert load_tasks(f"generate:{domain}", split="heldout", seed=0)


def test_the_sampler_appends_what_the_demonstrations_teach(domain: str) -> None:
    """Ids of a demonstration are prompt, turn, reply, turn, ..., as the environment loop puts them together."""
    tokenizer, messages = tiny_tokenizer(domain), conversation(domain, 1.0, 0)
    ((ids, learned),) = encode_demonstration(tokenizer, messages)
    expected = encode_prompt(tokenizer, messages[:1])
    for message in messages[1:]:
        if message["role"] == "tool":
            expected += encode_reply(tokenizer, [message])
        else:
            start = len(expected)
            said = ids[start : start + learned[start:].index(False)] if False in learned[start:] else ids[start:]
            expected += said
            assert said[-1] == tokenizer.eos_token_id
    assert ids == expected
