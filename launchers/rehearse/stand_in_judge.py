"""An OpenAI-compatible server of chat completions on loopback, in the place of the judges that a cascade names.

It has the protocol of vLLM's server as far as our clients use it: `POST /v1/chat/completions` with log-probs, and
`GET /v1/models`. What it says is in judge_replies.py.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cascade_rl.launchers.rehearse.judge_replies import Token, pieces, reply_to
from cascade_rl.rl_stages.rewards.reward_models.choice import ALTERNATIVES

MODEL = "stand-in"
BACKLOG = 1024  # connections that wait to be accepted: a group of 16 answers asks 120 questions at once


class MalformedRequest(ValueError):
    """The server answers it with status 400."""


@contextmanager
def stand_in_judge() -> Iterator[str]:
    """Yields the base URL, such as "http://127.0.0.1:40123/v1". The server ends with the context."""
    server = _Server(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def completion(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat completion of a request. Raises MalformedRequest."""
    messages = _checked(body)
    tokens = reply_to(messages)
    limit = body.get("max_tokens") or len(tokens)
    said = tokens[:limit]
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(token for token, _ in said)},
        "logprobs": _logprobs(said, body.get("top_logprobs") or 0) if body.get("logprobs") else None,
        "finish_reason": "stop" if len(said) == len(tokens) else "length",
    }
    asked = sum(len(pieces(message["content"])) for message in messages)
    return {
        "id": f"chatcmpl-{hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:32]}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.get("model", MODEL),
        "choices": [choice],
        "usage": {"prompt_tokens": asked, "completion_tokens": len(said), "total_tokens": asked + len(said)},
    }


def _checked(body: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    messages, alternatives = body.get("messages"), body.get("top_logprobs") or 0
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise MalformedRequest(f"expected 'messages' to be a list of roles and contents; found {str(messages)[:200]}")
    if not 0 <= alternatives <= ALTERNATIVES or (alternatives and not body.get("logprobs")):
        form = f"at most {ALTERNATIVES}, with 'logprobs' set to true"
        raise MalformedRequest(f"expected 'top_logprobs' to be {form}; found {alternatives}")
    return messages


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(name), str) for name in ("role", "content"))


def _logprobs(said: Sequence[Token], alternatives: int) -> dict[str, Any]:
    return {
        "content": [
            {**_item(token, chances[token]), "top_logprobs": _ranked(chances)[:alternatives]} for token, chances in said
        ]
    }


def _ranked(chances: Mapping[str, float]) -> list[dict[str, Any]]:
    return [_item(token, chances[token]) for token in sorted(chances, key=lambda token: -chances[token])]


def _item(token: str, chance: float) -> dict[str, Any]:
    return {"token": token, "logprob": math.log(chance), "bytes": list(token.encode())}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = BACKLOG


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self._send(404, _error(f"there is no {self.path}"))
            return
        self._send(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "cascade"}]})

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/chat/completions":
            self._send(404, _error(f"there is no {self.path}"))
            return
        try:
            self._send(200, completion(json.loads(content)))
        except (MalformedRequest, json.JSONDecodeError) as error:
            self._send(400, _error(str(error)))

    def log_message(self, *_: Any) -> None:
        """Nothing: the run has a log of its own."""

    def _send(self, status: int, reply: Mapping[str, Any]) -> None:
        content = json.dumps(reply).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:
            self.close_connection = True  # the client did not wait


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "code": None}}
