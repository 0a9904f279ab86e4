"""A judge that fails is a JudgeFailure, never an answer, and never later than the deadline."""

import itertools
import json
import math
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.reward_models.judge_client import Completion, JudgeClient, JudgeFailure
from tests.until import LIMIT_S, until

from .fake_judge import FakeJudge, slow

ASKED = [{"role": "user", "content": "is it so?"}]


def client(url: str, **settings: Any) -> closing[JudgeClient]:
    return closing(JudgeClient(url, "judge", **{"deadline_seconds": 240.0, "retries": 1, "concurrency": 4} | settings))


def test_a_completion_and_what_was_asked(server: FakeJudge) -> None:
    with client(server.url) as judge:
        assert judge.complete(ASKED, max_tokens=7, temperature=0.5, top_p=0.9) == Completion("yes")
    wanted = {"model": "judge", "messages": ASKED, "max_tokens": 7, "temperature": 0.5, "top_p": 0.9}
    assert server.requests == [wanted] and server.keys == [None]


def test_log_probs_by_token_the_likeliest_of_equal_texts(server: FakeJudge) -> None:
    with client(server.url) as judge:
        told = judge.complete(ASKED, max_tokens=1, logprobs=3)
    assert told == Completion("yes", ({"yes": -0.25, "no": -1.5},))
    assert list(told.top_logprobs[0]) == ["yes", "no"]  # the most probable first
    assert server.requests[0]["top_logprobs"] == 3


def test_a_choice_is_read_where_the_greedy_answer_makes_it(server: FakeJudge) -> None:
    deciding = {"token": "NO", "top_logprobs": [{"token": w, "logprob": p} for w, p in (("NO", -0.5), ("YES", -1.0))]}
    opening = {"token": "<j>", "top_logprobs": [{"token": "<j>", "logprob": 0.0}]}
    choice = {"message": {"content": "<j>NO"}, "logprobs": {"content": [opening, deciding]}}
    server.reply = lambda _: json.dumps({"choices": [choice]}).encode()
    with client(server.url) as judge:
        told = judge.choose(ASKED, ("YES", "NO"), behind="<j>", max_tokens=7)
        assert told == pytest.approx((math.exp(-1.0), math.exp(-0.5)))
        with pytest.raises(JudgeFailure, match="ends with <k> and one of YES, NO, found '<j>NO'"):
            judge.choose(ASKED, ("YES", "NO"), behind="<k>", max_tokens=7)
    asked = server.requests[0]
    assert (asked["temperature"], asked["top_logprobs"], asked["max_tokens"]) == (0.0, 20, 7)


@pytest.mark.parametrize(
    ("behind", "whole"), [("", True), ("</j>", True), ("</j>\n```", True), ("</j> is what it asks for", False)]
)
def test_a_choice_with_words_behind_it_is_quoted(server: FakeJudge, behind: str, whole: bool) -> None:
    """Also where the server says that the reply came to its end."""
    tokens = [{"top_logprobs": [{"token": part, "logprob": 0.0}]} for part in ("<j>", "YES", behind)]
    choice = {"message": {"content": f"<j>YES{behind}"}, "finish_reason": "stop", "logprobs": {"content": tokens}}
    server.reply = lambda _: json.dumps({"choices": [choice]}).encode()
    with client(server.url) as judge:
        if whole:
            assert judge.choose(ASKED, ("YES", "NO"), behind="<j>", max_tokens=7) == (1.0, 0.0)
        else:
            with pytest.raises(JudgeFailure, match="expected a reply that ends with <j> and one of YES, NO, found"):
                judge.choose(ASKED, ("YES", "NO"), behind="<j>", max_tokens=7)


@pytest.mark.parametrize(
    ("text", "reason", "found"),
    [
        ("<j>YES</j> is what the candidate asks for, b", "length", "was cut"),
        ("<j>YES</j>", "content_filter", "was cut"),
        ("<think>It says <j>YES</j>", "stop", "never leaves its reasoning"),
    ],
)
def test_an_unfinished_reply_has_no_answer(server: FakeJudge, text: str, reason: str, found: str) -> None:
    tokens = [{"top_logprobs": [{"token": part, "logprob": 0.0}]} for part in ("<j>", "YES", text[6:])]
    choice = {"message": {"content": text}, "finish_reason": reason, "logprobs": {"content": tokens}}
    server.reply = lambda _: json.dumps({"choices": [choice]}).encode()
    with client(server.url) as judge:
        with pytest.raises(JudgeFailure, match=found):
            _ = judge.complete(ASKED, max_tokens=7).answer
        with pytest.raises(JudgeFailure, match=found):
            judge.choose(ASKED, ("YES", "NO"), behind="<j>", max_tokens=7)


def test_the_key_is_sent_and_not_told(server: FakeJudge, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setenv("OUR_JUDGE", "secret-key")
    server.reply = lambda _: 401
    caplog.set_level("DEBUG")
    with client(server.url, api_key_env="OUR_JUDGE") as judge, pytest.raises(JudgeFailure, match="HTTP 401") as failure:
        judge.complete(ASKED, max_tokens=1)
    assert server.keys == ["Bearer secret-key"]  # once: no other try would end otherwise
    assert "secret-key" not in str(failure.value) + caplog.text
    with pytest.raises(UserError, match="found 'NOT_SET'"):
        JudgeClient(server.url, "judge", deadline_seconds=1, retries=0, concurrency=1, api_key_env="NOT_SET")


@pytest.mark.parametrize("broken", [500, 429, b"garbage", b"{}", b'{"choices": [{"message": "x"}]}', b"[" * 100_000])
def test_what_may_pass_is_tried_again(server: FakeJudge, broken: int | bytes) -> None:
    replies = itertools.chain([broken], itertools.repeat("yes"))
    server.reply = lambda _: next(replies)
    with client(server.url, retries=1) as judge:
        assert judge.complete(ASKED, max_tokens=1).text == "yes"
        server.reply = lambda _: broken
        with pytest.raises(
            JudgeFailure, match=str(broken) if isinstance(broken, int) else "expected a chat completion"
        ):
            judge.complete(ASKED, max_tokens=1)
    assert len(server.requests) == 4


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with client(url) as judge, pytest.raises(JudgeFailure, match="ConnectError"):
        judge.complete(ASKED, max_tokens=1)


def test_no_call_outlives_its_deadline_in_whatever_place_it_waits(server: FakeJudge) -> None:
    server.reply = slow
    with client(server.url, deadline_seconds=0.3, concurrency=1) as judge, ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(judge.complete, ASKED, max_tokens=1) for _ in range(3)]
        told = [str(call.exception()) for call in calls]
    assert all("no answer within 0.3 s" in failure for failure in told)


def test_no_more_calls_at_once_than_places(server: FakeJudge) -> None:
    running, peak, lock, pair = 0, 0, threading.Lock(), threading.Barrier(2)

    def reply(_: Any) -> str:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        pair.wait(LIMIT_S)
        time.sleep(0.05)  # a third would come
        with lock:
            running -= 1
        return "yes"

    server.reply = reply
    with client(server.url, concurrency=2) as judge, ThreadPoolExecutor(6) as threads:
        calls = [threads.submit(judge.complete, ASKED, max_tokens=1) for _ in range(6)]
        assert {call.result().text for call in calls} == {"yes"}
    assert peak == 2


def test_closing_ends_calls_in_flight_and_the_thread(server: FakeJudge) -> None:
    server.reply = slow
    judge = JudgeClient(server.url, "judge", deadline_seconds=600, retries=0, concurrency=2)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(judge.complete, ASKED, max_tokens=1)
        until(lambda: server.requests)
        judge.close()
        judge.close()
        assert "closed before it answered" in str(call.exception())
    with pytest.raises(JudgeFailure, match="closed"):
        judge.complete(ASKED, max_tokens=1)
    assert not any(thread.name == "judge" for thread in threading.enumerate())
