"""A judge model behind an OpenAI-compatible server (vLLM, SGLang, NIM): one chat completion per call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Unpack

from cascade_rl.rl_stages.core.verdict import final_answer
from cascade_rl.rl_stages.rewards.reward_models.choice import ALTERNATIVES, ends_with_choice, word_probabilities
from cascade_rl.rl_stages.rewards.reward_models.server_client import (
    SHOWN_CHARACTERS,
    JudgeFailure,
    Limits,
    ServerClient,
    UnreadableReply,
)

Message = Mapping[str, str]

CUT = ("length", "content_filter", "abort")  # reasons why a server ended a reply before the model did


@dataclass(frozen=True)
class Completion:
    """What a judge wrote.

    top_logprobs  for each generated token, the log-probs of the most probable ones by token text, in that order;
                  empty if none were requested
    cut           whether it did not come to its end
    """

    text: str
    top_logprobs: tuple[Mapping[str, float], ...] = ()
    cut: bool = False

    @property
    def answer(self) -> str:
        """The part after the reasoning. Raises JudgeFailure for a reply without its end, or without the end of its
        reasoning: the judgement that it has may be one that it quotes."""
        answer = final_answer(self.text)
        if self.cut or answer is None:
            what = "was cut" if self.cut else "never leaves its reasoning"
            raise JudgeFailure(f"expected a whole reply; found one that {what}: {self.text[-SHOWN_CHARACTERS:]!r}")
        return answer


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
        """The probability of each of `words` right after the last `behind` of a greedy completion's answer.

        Raises JudgeFailure, also if the answer does not end with `behind` and one word.
        """
        ...

    def close(self) -> None:
        """Ends what it started; calls in flight raise JudgeFailure. It can be called more than once."""
        ...


class JudgeClient:
    """A chat model at `url`, such as "http://judge:8000/v1"; safe to call from many threads."""

    def __init__(self, url: str, model: str, **limits: Unpack[Limits]) -> None:
        self._model = model
        self._server = ServerClient(f"{url.rstrip('/')}/chat/completions", **limits)
        self.concurrency = self._server.concurrency

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
        (completion,) = self._server.ask([body], partial(_completion, expects_logprobs=logprobs > 0))
        return completion

    def choose(
        self, messages: Sequence[Message], words: Sequence[str], *, behind: str, max_tokens: int
    ) -> tuple[float, ...]:
        """See `JudgeModel`. Words count only if they are among the most probable tokens that the server returns."""
        completion = self.complete(messages, max_tokens=max_tokens, logprobs=ALTERNATIVES)
        answer = completion.answer
        probabilities = word_probabilities(completion.top_logprobs, words, behind)
        if probabilities is None or not ends_with_choice(answer, behind):
            what = f"expected a reply that ends with {behind} and one of {', '.join(words)}"
            raise JudgeFailure(f"{self._server.url}: {what}, found {answer[-SHOWN_CHARACTERS:]!r}")
        return probabilities

    def close(self) -> None:
        """See `JudgeModel`."""
        self._server.close()


def _completion(reply: bytes, *, expects_logprobs: bool) -> Completion:
    try:
        choice = json.loads(reply)["choices"][0]
        text = choice["message"]["content"] or ""
        tokens = choice["logprobs"]["content"] if expects_logprobs else ()
        top_logprobs = tuple(_by_text(token["top_logprobs"]) for token in tokens)
        return Completion(str(text), top_logprobs, choice.get("finish_reason") in CUT)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        what = "a chat completion with log-probs" if expects_logprobs else "a chat completion"
        raise UnreadableReply(f"expected {what}") from None


def _by_text(alternatives: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Most probable first. Of tokens with the same text, such as parts of characters, the most probable one."""
    found: dict[str, float] = {}
    for item in sorted(alternatives, key=lambda item: -item["logprob"]):
        found.setdefault(item["token"], float(item["logprob"]))
    return found
