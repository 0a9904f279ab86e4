"""`cascade watch RUN`: the report of a run that is at work, served on this machine's loopback and kept up to date.

Nothing is written into the run folder. The address holds a secret, because other users of a login node reach its
loopback too.
"""

import getpass
import hashlib
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.report.page import page
from cascade_rl.launchers.report.status import is_claimed
from cascade_rl.rl_stages.run.run_folder import RunFolder

LOOPBACK = "127.0.0.1"
REST = 10
GROWING = ("metrics.jsonl", "events.jsonl", "scores.json", "done", "rollouts", "heldout")  # of a stage


class LivePage:
    """The page of a run, made when it is asked for and the run has changed since. To make it takes up to a share of
    1 / (1 + REST) of the time, since all samples of the run are read for it.

    live  the stages whose Slurm jobs are alive
    """

    def __init__(self, root: Path, limit: int, live: Callable[[], Collection[str]]) -> None:
        self.root, self.limit, self.live = root, limit, live
        self._making = threading.Lock()
        self._made = ("", b"")
        self._rests_until = 0.0

    def tag(self) -> str:
        """Another one for each state of the run folder that there may be a page of."""
        if time.monotonic() < self._rests_until:
            return self._made[0]
        return hashlib.sha256(repr([*self._seen()]).encode()).hexdigest()[:16]

    def content(self) -> tuple[str, bytes]:
        """The tag and the page. Raises UserError as `page` does."""
        with self._making:
            if (tag := self.tag()) != self._made[0]:
                began = time.monotonic()
                made, _ = page(self.root, self.limit, self.live(), follow=f'"{tag}"')
                self._made, ended = (tag, made.encode()), time.monotonic()
                self._rests_until = ended + REST * (ended - began)
            return self._made

    def _seen(self) -> Iterator[object]:
        yield is_claimed(self.root)
        for stage in RunFolder.open(self.root).stages:
            for path in (stage.root / name for name in GROWING):
                if path.exists():
                    yield path.name, path.stat().st_mtime_ns, path.stat().st_size


class Server(ThreadingHTTPServer):
    """Serves one page at one address. Raises UserError for a port that is taken."""

    daemon_threads = True

    def __init__(self, live_page: LivePage, port: int) -> None:
        self.live_page, self.place = live_page, f"/{secrets.token_urlsafe(16)}/"
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise UserError(f"--port: expected a free port, found {port}: {error.strerror}. Choose another.") from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A tab that is closed in the middle of an answer is no error; any other is one."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}{self.place}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        if self.path == self.server.place:
            self._answer(200, self.server.live_page.tag(), b"")
        else:
            self.send_error(404)

    def do_GET(self) -> None:
        if self.path != self.server.place:
            return self.send_error(404)
        try:
            self._answer(200, *self.server.live_page.content())
        except FileNotFoundError:  # a stage is being set aside; the page asks again
            self.send_error(503)

    def _answer(self, status: int, tag: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("ETag", f'"{tag}"')
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The terminal has the address, and no line per request."""


def run(root: Path, port: int, limit: int, live: Callable[[], Collection[str]]) -> int:
    """Serves until it is interrupted. Raises UserError as `page` does, and for a port that is taken."""
    live_page = LivePage(root, limit, live)
    live_page.content()
    with Server(live_page, port) as server:
        own = server.server_port
        print(f"{root}: {server.url}", flush=True)
        here = f"{getpass.getuser()}@{socket.gethostname()}"
        print(f"from elsewhere, first: ssh -N -L {own}:{LOOPBACK}:{own} {here}", flush=True)
        server.serve_forever()
    return 0
