"""A judge model on our own vLLM engine, in its own process, for a model that no server hosts.

An OpenAI-compatible server of the same vLLM would take three processes, and three times the memory and start-up time.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.cluster.node import Node, NodeLost, ThisNode
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling, Scored
from cascade_rl.rl_stages.config.room import Room
from cascade_rl.rl_stages.data.open_reasoning import opened_by
from cascade_rl.rl_stages.data.tokenizer import answer_text, encode_prompt
from cascade_rl.rl_stages.rewards.reward_models.choice import ends_with_choice
from cascade_rl.rl_stages.rewards.reward_models.judge_client import Completion, JudgeFailure, Message
from cascade_rl.rl_stages.rewards.reward_models.server_client import SHOWN_CHARACTERS

if TYPE_CHECKING:
    from cascade_rl.engine.core.settings import RolloutConfig
    from cascade_rl.engine.rollout.client import RolloutEngine

WEIGHTS = "model.safetensors"
VERSION = 0

Sequences = tuple[tuple[int, ...], ...]
"""Token ids to score."""


class ServedModel:
    """The Hugging Face model in `folder` on one engine, as a `JudgeModel`.

    The constructor waits for the engine's start, and raises what makes it fail. Answers depend only on the prompt, not
    on other calls. A call takes at most `deadline_seconds`. An engine that dies is restarted and gets its requests
    again.

    config  settings of the trainer's engines; one engine is made from them
    node    where it runs, on the cards of the trainer's first engine there; None: this one
    """

    def __init__(
        self,
        folder: Path,
        config: RolloutConfig,
        log_path: Path,
        node: Node | None = None,
        *,
        deadline_seconds: float,
        concurrency: int,
    ) -> None:
        from transformers import AutoTokenizer

        if not (folder / WEIGHTS).is_file():
            raise UserError(
                f"expected the judge's weights in one file; no such file: {folder / WEIGHTS}. Serve a larger model on "
                "a server of its own and set its url"
            )
        self.concurrency = concurrency
        self._folder, self._log_path, self._node = folder, log_path, node or ThisNode()
        self._config = replace(config, engines=1)
        self._deadline = deadline_seconds
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._numbers = itertools.count()
        self._calls: SimpleQueue[tuple[Request | Sequences, Future[Any]] | None] = SimpleQueue()
        self._drawing: dict[str, Future[Any]] = {}
        self._scoring: list[tuple[Sequences, Future[Any]]] = []
        self._closed = False
        self._started: Future[RolloutEngine] = Future()
        # The engine ends with the thread that makes it, so that thread is our own.
        self._thread = threading.Thread(target=self._run, name="served model", daemon=True)
        self._thread.start()
        self._engine = self._started.result()

    def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
    ) -> Completion:
        """See `JudgeModel`."""
        request = self._request(messages, max_tokens, temperature, top_p)
        rollout: Rollout = self._asked(request, time.monotonic() + self._deadline)
        return self._completion(rollout)

    def choose(
        self, messages: Sequence[Message], words: Sequence[str], *, behind: str, max_tokens: int
    ) -> tuple[float, ...]:
        """See `JudgeModel`. Scores each word, with all of its tokens, after the greedy completion up to `behind`."""
        until = time.monotonic() + self._deadline
        request = self._request(messages, max_tokens, temperature=0.0, top_p=1.0)
        rollout: Rollout = self._asked(request, until)
        if not ends_with_choice(answer := self._completion(rollout).answer, behind):
            what = f"expected a reply that ends with {behind} and one word"
            raise JudgeFailure(f"{self._folder}: {what}, found {answer[-SHOWN_CHARACTERS:]!r}")
        before, rest = self._before(rollout.token_ids.tolist(), behind)
        tails = [self._tokenizer.encode(rest + word, add_special_tokens=False) for word in words]
        sequences = tuple((*request.prompt_ids, *before, *tail) for tail in tails)
        self._require_room(max(map(len, sequences)), 1)
        scores: list[Scored] = self._asked(sequences, until)
        return tuple(math.exp(scored.logprobs[-len(tail) :].sum()) for scored, tail in zip(scores, tails, strict=True))

    def close(self) -> None:
        """See `JudgeModel`. On return the process is gone."""
        self._closed = True
        self._calls.put(None)
        for pid in self._engine.pids:
            with suppress(ProcessLookupError, NodeLost):
                self._node.call(os.kill, pid, signal.SIGKILL)
        self._thread.join()

    def _completion(self, rollout: Rollout) -> Completion:
        text = opened_by(self._tokenizer, rollout.prompt_ids) + answer_text(self._tokenizer, rollout)
        return Completion(text, cut=rollout.finish != "stop")

    def _request(self, messages: Sequence[Message], max_tokens: int, temperature: float, top_p: float) -> Request:
        prompt_ids = tuple(encode_prompt(self._tokenizer, [dict(message) for message in messages]))
        self._require_room(len(prompt_ids), max_tokens)
        sampling = Sampling(max_tokens, temperature, top_p, (self._tokenizer.eos_token_id,))
        return Request(str(next(self._numbers)), prompt_ids, sampling, zlib.crc32(repr(prompt_ids).encode()))

    def _require_room(self, prompt: int, answer: int) -> None:
        room = Room("reward_model", self._config.max_model_len, answer, key="max_tokens")
        if prompt > room.longest_prompt:
            raise JudgeFailure(room.refusal(prompt))

    def _before(self, answer: list[int], behind: str) -> tuple[list[int], str]:
        """The tokens that end no later than the answer's last `behind`, and the text from there to its end."""
        text = self._tokenizer.decode(answer)
        end = text.rfind(behind) + len(behind)
        starts = [self._tokenizer.decode(answer[:count]) for count in range(len(answer) + 1)]
        count = max(count for count, start in enumerate(starts) if text[:end].startswith(start))
        return answer[:count], text[len(starts[count]) : end]

    def _asked(self, question: Request | Sequences, until: float) -> Any:
        """The rollout of a request, or the scores of sequences."""
        answer: Future[Any] = Future()
        self._calls.put((question, answer))
        if self._closed:
            raise JudgeFailure(f"{self._folder}: the engine is closed")
        try:
            return answer.result(until - time.monotonic())
        except TimeoutError:
            raise JudgeFailure(f"{self._folder}: no answer within {self._deadline:g} s") from None

    def _run(self) -> None:
        from cascade_rl.engine.rollout.client import RolloutEngine

        try:
            with RolloutEngine(self._folder, self._config, 0, self._log_path, [self._node]) as engine:
                engine.update_weights(self._folder / WEIGHTS, VERSION)
                self._started.set_result(engine)
                self._serve(engine)
        except Exception as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    def _serve(self, engine: RolloutEngine) -> None:
        from cascade_rl.engine.rollout.client import EngineDied

        while not self._closed:
            try:
                if engine.version is None:
                    engine.update_weights(self._folder / WEIGHTS, VERSION)  # this also resubmits what was pending
                self._work(engine)
            except EngineDied:
                if not self._closed:
                    with suppress(EngineDied):  # during its start; the next iteration tries again
                        engine.restart()
        for answer in (*self._drawing.values(), *(answer for _, answer in self._scoring)):
            answer.set_exception(JudgeFailure(f"{self._folder}: closed before it answered"))

    def _work(self, engine: RolloutEngine) -> None:
        """Works until no request is left. New requests join as answers arrive."""
        self._submit(engine)
        for rollout in engine.results():
            self._drawing.pop(rollout.id).set_result(rollout)
            self._submit(engine)

    def _submit(self, engine: RolloutEngine) -> None:
        """Submits the waiting calls; waits for the next one if nothing runs. On return scores are complete."""
        calls = [] if self._drawing or self._scoring else [self._calls.get()]
        while not self._calls.empty():
            calls.append(self._calls.get())
        asked = [call for call in calls if call]
        self._scoring += [(question, answer) for question, answer in asked if isinstance(question, tuple)]
        requests = {question: answer for question, answer in asked if isinstance(question, Request)}
        self._drawing |= {request.id: answer for request, answer in requests.items()}
        engine.submit(requests)
        while self._scoring:
            sequences, answer = self._scoring[0]
            answer.set_result(engine.score(sequences))
            del self._scoring[0]
