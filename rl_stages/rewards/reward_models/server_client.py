"""Questions to a model behind an HTTP server, with places, deadlines and retries."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, Unpack

from cascade_rl.engine.core.errors import UserError

if TYPE_CHECKING:
    import httpx

FIRST_BACKOFF_SECONDS = 0.1
SHOWN_CHARACTERS = 200

type Read[T] = Callable[[bytes], T]
"""Makes an answer of a reply's body. Raises UnreadableReply."""


class JudgeFailure(RuntimeError):
    """The judge gave no usable answer in time: an infrastructure failure, never a score."""


class UnreadableReply(ValueError):
    """The body of a reply is not what was asked for. The message says what was expected."""


class Limits(TypedDict):
    """A call takes at most `deadline_seconds`, including retries and the wait for one of `concurrency` slots. Refused
    connections, 5xx, 429 and unreadable replies are retried up to `retries` times.

    api_key_env  environment variable that holds the bearer token; UserError if it is named but not set
    """

    deadline_seconds: float
    retries: int
    concurrency: int
    api_key_env: NotRequired[str | None]


class ServerClient:
    """A server's path at `url`; safe to call from many threads.

    The server is reached directly: proxies and .netrc files of the environment are not read.
    """

    def __init__(self, url: str, **limits: Unpack[Limits]) -> None:
        self.url = url
        self.concurrency = limits["concurrency"]
        self._deadline = limits["deadline_seconds"]
        self._retries = limits["retries"]
        self._http = _http(limits.get("api_key_env"))
        self._places = asyncio.Semaphore(self.concurrency)
        self._lock = threading.Lock()
        self._closed = False
        self._closing = asyncio.Event()
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run, name="judge", daemon=True)
        self._thread.start()

    def ask[T](self, bodies: Sequence[Mapping[str, Any]], read: Read[T]) -> list[T]:
        """What `read` makes of the reply to each body, all asked at once. Raises the JudgeFailure of the first that has
        no answer."""
        with self._lock:  # else a call could be lost while the loop ends
            if self._closed:
                raise JudgeFailure(f"{self.url}: the client is closed")
            calls = [asyncio.run_coroutine_threadsafe(self._ask(body, read), self._loop) for body in bodies]
        try:
            return [call.result() for call in calls]
        except CancelledError:
            raise JudgeFailure(f"{self.url}: closed before it answered") from None

    def close(self) -> None:
        """Calls in flight raise JudgeFailure. It can be called more than once."""
        with self._lock:
            if not self._closed:
                self._loop.call_soon_threadsafe(self._closing.set)
            self._closed = True
        self._thread.join()

    def _run(self) -> None:
        with self._runner:  # its end cancels the calls in flight
            self._runner.run(self._closing.wait())

    async def _ask[T](self, body: Mapping[str, Any], read: Read[T]) -> T:
        try:
            async with asyncio.timeout(self._deadline), self._places:
                return await self._retried(body, read)
        except TimeoutError:
            raise JudgeFailure(f"{self.url}: no answer within {self._deadline:g} s") from None

    async def _retried[T](self, body: Mapping[str, Any], read: Read[T]) -> T:
        for attempt in range(self._retries):
            try:
                return await self._once(body, read)
            except _Passing:
                await asyncio.sleep(FIRST_BACKOFF_SECONDS * 2**attempt)
        return await self._once(body, read)

    async def _once[T](self, body: Mapping[str, Any], read: Read[T]) -> T:
        from httpx import RequestError

        try:
            response = await self._http.post(self.url, json=body)
        except RequestError as error:
            raise _Passing(f"{self.url}: {type(error).__name__}: {error}") from None
        if response.status_code == 200:
            return self._read(response.content, read)
        passing = response.status_code >= 500 or response.status_code == 429
        kind = _Passing if passing else JudgeFailure
        raise kind(f"{self.url}: HTTP {response.status_code}: {response.text[:SHOWN_CHARACTERS]}")

    def _read[T](self, reply: bytes, read: Read[T]) -> T:
        try:
            return read(reply)
        except UnreadableReply as expected:
            shown = reply[:SHOWN_CHARACTERS].decode(errors="replace")
            raise _Passing(f"{self.url}: {expected}, found {shown!r}") from None


class _Passing(JudgeFailure):
    """A failure that a retry may not meet."""


def _http(api_key_env: str | None) -> httpx.AsyncClient:
    # Imported here: it takes a quarter of a second, which reading a configuration should not pay.
    import httpx

    headers = {}
    if api_key_env is not None:
        if api_key_env not in os.environ:
            raise UserError(f"api_key_env: expected an environment variable that is set, found {api_key_env!r}")
        headers["Authorization"] = f"Bearer {os.environ[api_key_env]}"
    # The calls have their own deadline and limit. Each has its own connection: the server may close a kept one just
    # as it is used again.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(headers=headers, timeout=None, limits=limits, trust_env=False)
