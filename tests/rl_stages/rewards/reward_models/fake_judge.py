"""An OpenAI-compatible server on loopback that answers by rule, or fails in a given way."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any]], str | int | bytes]
"""Of a request's body: the text of a completion, an HTTP status, or the bytes of the whole reply."""


class FakeJudge:
    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_port}/v1"
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.paths: list[str] = []
        self.reply: Reply = lambda _: "yes"


class Handler(BaseHTTPRequestHandler):
    judge: FakeJudge

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.judge.requests.append(body)
        self.judge.keys.append(self.headers["Authorization"])
        self.judge.paths.append(self.path)
        reply = self.judge.reply(body)
        status = reply if isinstance(reply, int) else 200
        content = reply if isinstance(reply, bytes) else json.dumps(completion(str(reply), body)).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            pass  # the client did not wait

    def log_message(self, *_: Any) -> None:
        pass


def completion(text: str, body: dict[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
    if body.get("logprobs"):
        top = [{"token": "no", "logprob": -9.0}, {"token": text, "logprob": -0.25}, {"token": "no", "logprob": -1.5}]
        choice["logprobs"] = {"content": [{"token": text, "logprob": -0.25, "top_logprobs": top}]}
    return {"choices": [choice]}


@contextmanager
def fake_judge() -> Iterator[FakeJudge]:
    handler = type("Bound", (Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    handler.judge = judge = FakeJudge(server)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield judge
    server.shutdown()
    server.server_close()
    thread.join()


def slow(_: dict[str, Any]) -> str:
    time.sleep(600)
    return "too late"
