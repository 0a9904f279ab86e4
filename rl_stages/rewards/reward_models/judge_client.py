"""A judge model behind an OpenAI-compatible server (vLLM, SGLang, NIM): one chat completion per call."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.reward_models.choice import ALTERNATIVES, word_probabilities

if TYPE_CHECKING:
    import httpx

FIRST_BACKOFF_SECONDS = 0.1
SHOWN_CHARACTERS = 200

Message = Mapping[str, str]


class JudgeFailure(RuntimeError):
    """The judge gave no usable answer in time: an infrastructure failure, never a score."""


@dataclass(frozen=True)
class Completion:
    """What a judge wrote.

    top_logprobs  for each generated token, the log-probs of the most probable ones by token text, in that order;
                  empty if none were requested
    """

    text: str
    top_logprobs: tuple[Mapping[str, float], ...] = ()


class JudgeModel(Protocol):
    """A judge: a server (`JudgeClient`) or our own engine (`ServedModel`).

    concurrency  calls that it works on at once, each from its own thread; further calls wait
    """

    concurrency: int

    def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
    ) -> Completion:
        """One completion. Raises JudgeFailure."""
        ...

    def choose(
        self, messages: Sequence[Message], words: Sequence[str], *, behind: str, max_tokens: int
    ) -> tuple[float, ...]:
        """The probability of each of `words` right after the last `behind` of a greedy completion.

        Raises JudgeFailure, also if the completion has no `behind`.
        """
        ...

    def close(self) -> None:
        """Ends what it started; calls in flight raise JudgeFailure. It can be called more than once."""
        ...


class JudgeClient:
    """A chat model at `url`, such as "http://judge:8000/v1"; safe to call from many threads.

    A call takes at most `deadline_seconds`, including retries and the wait for one of `concurrency` slots. Refused
    connections, 5xx, 429 and replies that are not a completion are retried up to `retries` times.

    api_key_env  environment variable that holds the bearer token; UserError if it is named but not set

    The server is reached directly: proxies and .netrc files of the environment are not read.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        deadline_seconds: float,
        retries: int,
        concurrency: int,
        api_key_env: str | None = None,
    ) -> None:
        self.concurrency = concurrency
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._model = model
        self._deadline = deadline_seconds
        self._retries = retries
        self._http = _http(api_key_env)
        self._places = asyncio.Semaphore(concurrency)
        self._lock = threading.Lock()
        self._closed = False
        self._closing = asyncio.Event()
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run, name="judge", daemon=True)
        self._thread.start()

    def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        logprobs: int = 0,
    ) -> Completion:
        """See `JudgeModel`. `logprobs` is the number of alternatives to return for each token."""
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [dict(message) for message in messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
        }
        if logprobs:
            body |= {"logprobs": True, "top_logprobs": logprobs}
        with self._lock:  # else a call could be lost while the loop ends
            if self._closed:
                raise JudgeFailure(f"{self._url}: the client is closed")
            call = asyncio.run_coroutine_threadsafe(self._ask(body), self._loop)
        try:
            return call.result()
        except CancelledError:
            raise JudgeFailure(f"{self._url}: closed before it answered") from None

    def choose(
        self, messages: Sequence[Message], words: Sequence[str], *, behind: str, max_tokens: int
    ) -> tuple[float, ...]:
        """See `JudgeModel`. Words count only if they are among the most probable tokens that the server returns."""
        completion = self.complete(messages, max_tokens=max_tokens, logprobs=ALTERNATIVES)
        probabilities = word_probabilities(completion.top_logprobs, words, behind)
        if probabilities is None:
            shown = completion.text[-SHOWN_CHARACTERS:]
            raise JudgeFailure(f"{self._url}: expected {behind} and one of {', '.join(words)}, found {shown!r}")
        return probabilities

    def close(self) -> None:
        """See `JudgeModel`."""
        with self._lock:
            if not self._closed:
                self._loop.call_soon_threadsafe(self._closing.set)
            self._closed = True
        self._thread.join()

    def _run(self) -> None:
        with self._runner:  # its end cancels the calls in flight
            self._runner.run(self._closing.wait())

    async def _ask(self, body: Mapping[str, Any]) -> Completion:
        try:
            async with asyncio.timeout(self._deadline), self._places:
                return await self._retried(body)
        except TimeoutError:
            raise JudgeFailure(f"{self._url}: no answer within {self._deadline:g} s") from None

    async def _retried(self, body: Mapping[str, Any]) -> Completion:
        for attempt in range(self._retries):
            try:
                return await self._once(body)
            except _Passing:
                await asyncio.sleep(FIRST_BACKOFF_SECONDS * 2**attempt)
        return await self._once(body)

    async def _once(self, body: Mapping[str, Any]) -> Completion:
        from httpx import RequestError

        try:
            response = await self._http.post(self._url, json=body)
        except RequestError as error:
            raise _Passing(f"{self._url}: {type(error).__name__}: {error}") from None
        if response.status_code == 200:
            return _completion(response.content, self._url, expects_logprobs="logprobs" in body)
        passing = response.status_code >= 500 or response.status_code == 429
        kind = _Passing if passing else JudgeFailure
        raise kind(f"{self._url}: HTTP {response.status_code}: {response.text[:SHOWN_CHARACTERS]}")


class _Passing(JudgeFailure):
    """A failure that a retry may not meet."""


def _http(api_key_env: str | None) -> httpx.AsyncClient:
    # Imported here: it takes a quarter of a second, which reading a configuration should not pay.
    from httpx import AsyncClient, Limits

    headers = {}
    if api_key_env is not None:
        if api_key_env not in os.environ:
            raise UserError(f"api_key_env: expected an environment variable that is set, found {api_key_env!r}")
        headers["Authorization"] = f"Bearer {os.environ[api_key_env]}"
    # The calls have their own deadline and limit. Each has its own connection: the server may close a kept one just
    # as it is used again.
    limits = Limits(max_connections=None, max_keepalive_connections=0)
    return AsyncClient(headers=headers, timeout=None, limits=limits, trust_env=False)


def _completion(reply: bytes, url: str, expects_logprobs: bool) -> Completion:
    try:
        choice = json.loads(reply)["choices"][0]
        text = choice["message"]["content"] or ""
        tokens = choice["logprobs"]["content"] if expects_logprobs else ()
        return Completion(str(text), tuple(_by_text(token["top_logprobs"]) for token in tokens))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        what = "a chat completion with log-probs" if expects_logprobs else "a chat completion"
        shown = reply[:SHOWN_CHARACTERS].decode(errors="replace")
        raise _Passing(f"{url}: expected {what}, found {shown!r}") from None


def _by_text(alternatives: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Most probable first. Of tokens with the same text, such as parts of characters, the most probable one."""
    found: dict[str, float] = {}
    for item in sorted(alternatives, key=lambda item: -item["logprob"]):
        found.setdefault(item["token"], float(item["logprob"]))
    return found
