import json
import re
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.rewards.adapters.nemo_gym import NemoGymVerifier
from cascade_rl.rl_stages.tasks.domains import domain_named
from cascade_rl.rl_stages.tasks.load_tasks import parse_task
from tests.until import LIMIT_S


class Gym(BaseHTTPRequestHandler):
    """A resources server: a session by cookie; the reward is whether the answer is the row's `wanted`."""

    fault = None
    seen: ClassVar[list] = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, body, self.headers.get("Cookie")))
        if self.path == "/seed_session":
            return self.reply(200, {}, cookie="session=s1")
        if self.fault == "slow":
            time.sleep(600)
        if self.fault == "error":
            return self.reply(500, {"detail": "a judge is down"})
        if self.fault == "garbage":
            return self.reply(200, "no verdict")
        text = body["response"]["output"][-1]["content"][0]["text"]
        verdict = {"reward": float(text == body["wanted"]), "tokens": 3, "note": "x", "ok": True, "share": 0.5}
        return self.reply(200, verdict | ({"mask_sample": True} if self.fault == "mask" else {}))

    def reply(self, code, value, cookie=None):
        text = json.dumps(value).encode()
        self.send_response(code)
        if cookie:
            self.send_header("Set-Cookie", cookie)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@contextmanager
def server(fault=None):
    handler = type("Handler", (Gym,), {"fault": fault, "seen": []})
    gym = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    gym.handle_error = lambda *_: None  # a client that gave up is what one fault is about
    threading.Thread(target=gym.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{gym.server_port}", handler.seen
    finally:
        gym.shutdown()
        gym.server_close()


def task_at(address):
    params = {"input": [{"role": "user", "content": "q"}]}
    row = {"responses_create_params": params, "agent_ref": {"name": f"nemo-gym:{address}"}, "wanted": "yes"}
    return parse_task(row, "row", "t"), row


def test_a_session_is_seeded_and_verified_with_its_cookie():
    with server() as (address, seen):
        task, row = task_at(address)
        right = domain_named(task.domain).verifier()(task, "<think>hm</think>\nyes")
    assert (right.score, right.parts) == (1.0, {"tokens": 3.0, "share": 0.5})
    (seed, seeded, no_cookie), (verify, verified, cookie) = seen
    assert (seed, verify) == ("/seed_session", "/verify")
    assert (no_cookie, cookie) == (None, "session=s1")
    assert seeded == row
    thought, message = verified.pop("response")["output"]
    assert verified == row
    assert thought["summary"][0]["text"] == "hm"
    assert message["content"][0]["text"] == "yes"


def test_a_wrong_answer_scores_0_and_no_answer_is_not_sent():
    with server() as (address, seen):
        task, _ = task_at(address)
        verifier = NemoGymVerifier(address)
        assert verifier(task, "no").score == 0.0
        assert verifier(task, "<think>yes").outcome is Outcome.WRONG_FORMAT
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("fault", "detail"),
    [
        ("error", "HTTP 500: .*a judge is down"),
        ("slow", "timed out"),
        ("garbage", "expected a finite 'reward'"),
        ("mask", "masks this sample"),
    ],
)
def test_a_failing_server_masks_the_sample(fault, detail):
    with server(fault) as (address, _):
        verifier = NemoGymVerifier(address, deadline_seconds=0.5 if fault == "slow" else LIMIT_S)
        verdict = verifier(task_at(address)[0], "yes")
    assert (verdict.outcome, verdict.score) == (Outcome.INFRASTRUCTURE_FAILURE, None)
    assert re.search(detail, verdict.detail)


def test_a_server_that_is_gone_masks_the_sample():
    with server() as (address, _):
        task, _ = task_at(address)
    verdict = NemoGymVerifier(address)(task, "yes")
    assert verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE
    assert address in verdict.detail


@pytest.mark.parametrize("target", ["", "localhost:80", "ftp://host/x", "http://"])
def test_other_addresses_are_refused(target):
    with pytest.raises(UserError, match="expected nemo-gym:http://HOST:PORT; found"):
        domain_named(f"nemo-gym:{target}")
