"""An answer that never leaves the reasoning that its prompt opened is in a wrong format, in every domain."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import count, product
from typing import Any

import numpy as np
import pytest

from cascade_rl.engine.core.rollouts import Outcome, Rollout
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import UNFINISHED, Verdict
from cascade_rl.rl_stages.data.chat_templates import NAMED
from cascade_rl.rl_stages.data.tokenizer import encode_prompt, train_tokenizer
from cascade_rl.rl_stages.rewards.verifiers.structured import tool_call
from cascade_rl.rl_stages.scoring.judge import Judge
from cascade_rl.rl_stages.tasks.domains import DOMAINS, domain_named

ASKED = {"role": "user", "content": "What is 3 + 4?"}
TOKENIZER = train_tokenizer([[ASKED]])
NUMBERS = count()
MODES = (None, True, False)
OTHERS = ("python:json:dumps", "nemo-gym:http://127.0.0.1:9")
GYM = {"entry": {"question": "?", "answer": "5", "metadata": {"source_dataset": "gcd"}}}
CALL = '<tool_call>{"name": "pay", "arguments": {"to": "Ann"}}</tool_call>'
PAY = {"type": "function", "name": "pay", "parameters": {"properties": {"to": {"type": "string"}}}}
BOXED = {"code", "swe_executed"}  # domains whose answers run in a sandbox
SINGLE = [name for name, domain in DOMAINS.items() if domain.verifier]


@cache
def case(domain: str) -> tuple[dict[str, Any], str]:
    """Checked fields of a row, and a right answer."""
    if domain == "tool_call":
        expected = {"type": "function_call", "name": "pay", "arguments": '{"to": "Ann"}'}
        return tool_call.parse_row({"expected_action": expected, "responses_create_params": {"tools": [PAY]}}), CALL
    if domain == "reasoning_gym":
        return GYM, "5"
    if domain in OTHERS:
        return {}, "5"
    found = domain_named(domain)
    assert found.lessons
    lesson = next(found.lessons())
    answer = lesson.right(random.Random(1))
    assert isinstance(answer, str)
    return found.parse_row(lesson.row(domain)), answer


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(TOKENIZER) as judge:
        yield judge


def sampled(text: str, thinking: bool | None) -> Rollout:
    prompt = np.array(encode_prompt(TOKENIZER, [ASKED], (), thinking))
    ids = np.array([*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id])
    return Rollout(f"a/{next(NUMBERS)}", prompt, ids, np.zeros(len(ids), np.float32), None, ((0, 0),), "stop")


def scored(judge: Judge, domain: str, text: str, thinking: bool | None) -> Verdict:
    task = Task("t", domain, (ASKED,), case(domain)[0], thinking=thinking)
    ((told, verdict),) = judge([task], [[sampled(text, thinking)]])[0]
    assert told == text
    return verdict


@pytest.mark.parametrize("domain", [*SINGLE, *OTHERS])
@pytest.mark.parametrize(("template", "thinking"), product(NAMED, MODES))
def test_no_verifier_sees_it(
    monkeypatch: pytest.MonkeyPatch, template: str, thinking: bool | None, domain: str
) -> None:
    """Where the prompt opens the reasoning, and where the sample does."""
    monkeypatch.setattr(TOKENIZER, "chat_template", NAMED[template])
    opens = template != "cascade1" and thinking is not False
    _, right = case(domain)
    with Judge(TOKENIZER) as judge:
        for text in (right, f"</think>{right}<think>{right}") if opens else (f"<think>{right}",):
            verdict = scored(judge, domain, text, thinking)
            assert (verdict.outcome, verdict.score, verdict.detail) == (Outcome.WRONG_FORMAT, 0.0, UNFINISHED)
        assert not judge.verifiers


@pytest.mark.sandbox
@pytest.mark.parametrize("domain", sorted(set(SINGLE) - {"reasoning_gym"}))
@pytest.mark.parametrize(("template", "thinking"), product(NAMED, MODES))
def test_a_finished_answer_is_scored_as_ever(
    monkeypatch: pytest.MonkeyPatch, judge: Judge, template: str, thinking: bool | None, domain: str
) -> None:
    if domain in BOXED and template == "cascade2":
        pytest.skip("as nemotron3, and slow")
    monkeypatch.setattr(TOKENIZER, "chat_template", NAMED[template])
    opens = template != "cascade1" and thinking is not False
    _, right = case(domain)
    assert scored(judge, domain, f"so</think>{right}" if opens else right, thinking).score == 1.0


class Ranks:
    """A group verifier that gives each text its length."""

    concurrency = 1

    def __init__(self, scores_truncated: bool) -> None:
        self.scores_truncated = scores_truncated

    def rank(self, task: Task, texts: Sequence[str]) -> list[Verdict]:
        return [Verdict.scored(float(len(text))) for text in texts]

    def close(self) -> None:
        """Nothing was started."""


@pytest.mark.parametrize(("whole", "scores"), [(False, [0.0, 11.0, 0.0]), (True, [2.0, 11.0, 9.0])])
def test_a_group_is_ranked_without_it_unless_the_verifier_scores_whole_texts(
    monkeypatch: pytest.MonkeyPatch, whole: bool, scores: list[float]
) -> None:
    """Whole texts are scored by a Bradley-Terry model, as they were sampled."""
    monkeypatch.setattr(TOKENIZER, "chat_template", NAMED["nemotron3"])
    task = Task("t", "rlhf", (ASKED,), {"principle": None})
    group = [sampled(text, None) for text in ("so", "s</think>so", "so, think")]
    with Judge(TOKENIZER, {"rlhf": lambda: Ranks(whole)}) as judge:
        assert [verdict.score for _, verdict in judge([task], [group])[0]] == scores


class Pays:
    concurrency = 1

    def __call__(self, _task: Task, _text: str) -> Verdict:
        return Verdict.scored(1.0)

    def close(self) -> None: ...


@pytest.mark.parametrize(("domain", "score"), [("math", 0.0), ("python:json:dumps", 1.0)])
def test_an_answer_cut_in_its_reasoning_is_scored_by_a_reward_of_the_user_alone(domain: str, score: float) -> None:
    cut = replace(sampled("<think>5", None), finish="length")
    task = Task("t", domain, (ASKED,), case(domain)[0])
    with Judge(TOKENIZER, {"python:json:dumps": Pays}, score_truncated=True) as judge:
        ((_, verdict),) = judge([task], [[cut]])[0]
    assert (verdict.outcome, verdict.score) == (Outcome.TRUNCATED, score)
