"""`nemo-gym:http://HOST:PORT`: a resources server of NeMo-Gym, called over HTTP.

Each answer is one session: POST /seed_session with the row, then, with the same cookies, POST /verify with the row
and the answer as a Responses object. Multi-turn tools are not called.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from http.client import HTTPException
from http.cookiejar import CookieJar
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPCookieProcessor, OpenerDirector, ProxyHandler, Request, build_opener

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.adapters.reward_process import reasoning_of

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

DEADLINE_SECONDS = 60.0  # of one request
CONCURRENCY = 32
MAX_REPLY_BYTES = 64 << 20


class ServerFailed(RuntimeError):
    """The server's reply is not a verdict."""


def check(target: str) -> None:
    """UserError unless `target` is an HTTP address. The server may start later."""
    parts = urlsplit(target)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"expected nemo-gym:http://HOST:PORT; found 'nemo-gym:{target}'")


class NemoGymVerifier:
    """Scores with the server's `reward`. The other numbers of its reply become parts.

    An HTTP error, a timeout, a reply without a finite reward and a `mask_sample` are infrastructure failures. Safe to
    call from several threads.
    """

    concurrency = CONCURRENCY

    def __init__(self, address: str, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._address = address.rstrip("/")
        self._deadline = deadline_seconds

    def __call__(self, task: Task, text: str) -> Verdict:
        answer = final_answer(text)
        if not answer:
            return Verdict.wrong_format("expected an answer after the reasoning; found none")
        # Environment servers are part of the run, where an internet proxy cannot reach them.
        session = build_opener(ProxyHandler({}), HTTPCookieProcessor(CookieJar()))
        try:
            self._post(session, "/seed_session", task.metadata)
            reply = self._post(session, "/verify", {**task.metadata, "response": response(reasoning_of(text), answer)})
            return _verdict(reply)
        except (ServerFailed, OSError, HTTPException) as failure:
            return Verdict.infrastructure_failure(f"{self._address}: {failure}")

    def close(self) -> None:
        """Nothing was started."""

    def _post(self, session: OpenerDirector, path: str, body: Mapping[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        call = Request(self._address + path, json.dumps(body).encode(), headers, method="POST")
        try:
            with session.open(call, timeout=self._deadline) as reply:
                return json.loads(reply.read(MAX_REPLY_BYTES))
        except HTTPError as error:
            raise ServerFailed(f"{path}: HTTP {error.code}: {error.read(200).decode(errors='replace')}") from None
        except (ValueError, RecursionError) as error:
            raise ServerFailed(f"{path}: expected JSON; found {error}") from None


def response(reasoning: str, answer: str) -> dict[str, Any]:
    """The answer as an object of OpenAI's Responses API."""
    thought = {"type": "reasoning", "id": "rs_0", "summary": [{"type": "summary_text", "text": reasoning}]}
    content = [{"type": "output_text", "text": answer, "annotations": []}]
    message = {"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "content": content}
    return {
        "id": "resp_0",
        "object": "response",
        "created_at": 0.0,
        "model": "policy",
        "output": [thought] * bool(reasoning) + [message],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    }


def _verdict(reply: Any) -> Verdict:
    reward = reply.get("reward") if isinstance(reply, dict) else None
    if not _is_number(reward):
        raise ServerFailed(f"/verify: expected a finite 'reward'; found {reward!r}")
    if reply.get("mask_sample"):
        return Verdict.infrastructure_failure("the server masks this sample")
    parts = {name: float(value) for name, value in reply.items() if name != "reward" and _is_number(value)}
    return Verdict.scored(float(reward), parts)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
