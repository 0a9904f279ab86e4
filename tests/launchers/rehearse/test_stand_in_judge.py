"""The stand-in judge behind our own clients and verifiers, which must not tell it from a real server."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.error import HTTPError

import pytest

from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.launchers.rehearse.judge_replies import certain, drawn
from cascade_rl.launchers.rehearse.stand_in_judge import stand_in_judge
from cascade_rl.rl_stages.config.reward_model import GenRm, LengthTerms, PromptForm, RewardModel
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.reward_models.genrm import comparison, parse_judgement
from cascade_rl.rl_stages.rewards.reward_models.judge_client import JudgeClient
from cascade_rl.rl_stages.rewards.swe.patch import Edit, edit_text
from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff
from cascade_rl.rl_stages.rewards.verifiers.judged.long_context import LongContextVerifier
from cascade_rl.rl_stages.rewards.verifiers.judged.rlhf import RankingVerifier
from cascade_rl.rl_stages.rewards.verifiers.swe_agentless import SweAgentlessVerifier

ASKED = [{"role": "user", "content": "Is it so?"}]
FILES = {"f.py": "def f(a):\n    return a\n"}
NO_LENGTHS = LengthTerms(reasoning=0, answer=0, reasoning_bonus=0, answer_bonus=0)


@pytest.fixture
def url() -> Iterator[str]:
    with stand_in_judge() as url:
        yield url


@pytest.fixture
def judge(url: str) -> Iterator[JudgeClient]:
    with closing(JudgeClient(url, "any/model", deadline_seconds=300, retries=0, concurrency=64)) as client:
        yield client


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["roles", "plain", "instructed"])
def test_a_group_is_ranked_in_every_form_of_the_question(judge: JudgeClient, url: str, form: PromptForm) -> None:
    settings = RewardModel(kind="server", model="m", url=url, genrm=GenRm(prompt=form, terms=NO_LENGTHS))
    verifier = RankingVerifier(judge, settings, 16)
    task = Task("t", "rlhf", ({"role": "user", "content": "Hello"},), {"principle": None})
    texts = [f"<think>so</think>Answer {number}." for number in range(16)]
    verdicts, again = (verifier.rank(task, texts) for _ in range(2))
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    assert all(verdict.parts["judge_failure_rate"] == verdict.parts["unreadable_rate"] == 0 for verdict in verdicts)
    assert len(set(scores)) > 8 and min(scores) < 2 and max(scores) > 4
    assert verdicts == again


def test_comparisons_use_the_whole_scale_and_know_no_order(judge: JudgeClient) -> None:
    found = []
    for number in range(64):
        pair = f"one {number}", f"two {number}"
        asked = [comparison(ASKED, None, *answers, "roles") for answers in (pair, pair[::-1])]
        straight, turned = (parse_judgement(judge.complete(messages, max_tokens=64).text) for messages in asked)
        assert straight and turned and straight.score_1 == turned.score_2 and straight.score_2 == turned.score_1
        assert straight.ranking + turned.ranking == 7
        found.append(straight)
    assert {judgement.score_1 for judgement in found} == {1, 2, 3, 4, 5}
    assert {judgement.ranking for judgement in found} == {1, 2, 3, 4, 5, 6}


def test_answers_about_a_long_context_are_right_or_wrong_and_both_orders_agree(judge: JudgeClient) -> None:
    verifier = LongContextVerifier(judge, judge_tokens=16)
    fields = {"long_context_kind": "qa", "question": "Where?", "expected_answer": "in town"}
    task = Task("t", "long_context", (), fields)
    verdicts = [verifier(task, f"place {number}") for number in range(40)]
    assert {verdict.score for verdict in verdicts} == {0.0, 1.0}
    assert not any(verdict.parts["orders_disagree"] for verdict in verdicts)


@pytest.mark.process
def test_patches_have_different_probabilities_that_stay(judge: JudgeClient) -> None:
    repaired = {"f.py": "def f(a):\n    return a + 1\n"}
    fields = {"files": FILES, "gold_patch": unified_diff(FILES, repaired)}
    task = Task("t", "swe_agentless", ({"role": "user", "content": "Repair it."},), fields)
    patches = [edit_text(Edit("f.py", "    return a", f"    return a + {number}")) for number in range(2, 22)]
    with closing(SweAgentlessVerifier(judge)) as verifier:
        verdicts = [verifier(task, patch) for patch in patches]
        again = [verifier(task, patch) for patch in patches]
    scores = [verdict.score for verdict in verdicts]
    assert {verdict.outcome for verdict in verdicts} == {Outcome.COMPLETED}
    assert len(set(scores)) == len(patches) and min(scores) < 0.2 and max(scores) > 0.8
    assert [verdict.score for verdict in again] == scores  # although each request has markers of its own


def test_a_completion_has_what_a_server_sends(url: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "<judgement>?"}], "max_tokens": 64}
    whole = post(url, {**body, "logprobs": True, "top_logprobs": 20})
    (choice,) = whole["choices"]
    tokens = choice["logprobs"]["content"]
    assert choice["finish_reason"] == "stop" and whole["model"] == "m"
    assert "".join(item["token"] for item in tokens) == choice["message"]["content"]
    assert whole["usage"]["completion_tokens"] == len(tokens)
    assert whole["usage"]["total_tokens"] == len(tokens) + whole["usage"]["prompt_tokens"]
    (cut,) = post(url, {**body, "max_tokens": 2})["choices"]
    assert (cut["finish_reason"], cut["message"]["content"], cut["logprobs"]) == ("length", "<judgement", None)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("chat/completions", {"messages": []}, 400),
        ("chat/completions", {"messages": [{"role": "user"}]}, 400),
        ("chat/completions", {"messages": ASKED, "top_logprobs": 3}, 400),
        ("chat/completions", {"messages": ASKED, "logprobs": True, "top_logprobs": 21}, 400),
        ("completions", {"prompt": "a"}, 404),
    ],
)
def test_what_a_server_refuses_is_refused(url: str, path: str, body: dict[str, Any], status: int) -> None:
    request = urllib.request.Request(f"{url}/{path}", json.dumps(body).encode())
    with pytest.raises(HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == status


def test_it_tells_its_model(url: str) -> None:
    with urllib.request.urlopen(f"{url}/models") as reply:
        assert [model["id"] for model in json.load(reply)["data"]] == ["stand-in"]


def test_values_are_spread_evenly() -> None:
    values = [drawn("text", str(number)) for number in range(1000)]
    assert all(60 < sum(low / 10 <= value < (low + 1) / 10 for value in values) < 140 for low in range(10))


def test_a_text_is_its_tokens() -> None:
    assert "".join(token for token, _ in certain('{"score_1": 3}')) == '{"score_1": 3}'
