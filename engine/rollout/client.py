"""The trainer's side of its rollout engines."""

import json
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

from cascade_rl.engine.cluster.node import Node, ThisNode
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import PART, Request, Rollout, Scored
from cascade_rl.engine.core.settings import Check, RolloutConfig
from cascade_rl.engine.rollout.engine import Follow, single_turn
from cascade_rl.engine.rollout.pending import Pending
from cascade_rl.engine.rollout.protocol import (
    AskHealth,
    BufferWeights,
    Health,
    JoinRefit,
    ReceiveWeights,
    Score,
    Settings,
    Sleep,
    Stall,
    Submit,
    UpdateWeights,
)
from cascade_rl.engine.rollout.server_process import Arrival, Arrivals, EngineDied, EngineProcess
from cascade_rl.engine.rollout.servers import Servers

__all__ = ["EngineDied", "RolloutEngine"]

LOOK_SECONDS = 1.0  # between two looks at the progress of the engines


class RolloutEngine:
    """`config.engines` vLLM engines, each in a process of its own, as one `Engine`; a context manager.

    Guarantees: every submitted id comes out of `results()` exactly once, also across `restart()`. What an engine has
    told of a sample when it dies is not drawn again. A sample never mixes weight versions without saying so in its
    spans. After `update_weights` returns, no cached key, value or state of older weights is used, and the file may be
    overwritten. Which engine samples a request follows from what was submitted and collected before, unless an engine
    dies; its seed is its own. One engine samples all turns of a sample.

    The constructor returns at once while the engines start; `health()` waits for them. They start without weights: the
    first ones come from a refit or `update_weights`, and sampling before is an error. Create it in a thread that
    outlives it: the servers end with that thread. Without `nodes` all engines run on this one. `last_parts` is where
    they leave what they have drawn of unfinished samples when they lose the trainer (last_parts.py); a deterministic
    engine leaves nothing.

    Every method raises `EngineDied` when a server that it needs is gone, or makes no progress and is ended; the others
    continue meanwhile.
    """

    def __init__(
        self,
        model_dir: str | Path,
        config: RolloutConfig,
        seed: int,
        log_path: str | Path,
        nodes: Sequence[Node] | None = None,
        last_parts: Path | None = None,
    ):
        self._config, self._keep_cache = config, config.cache_at_refit == "kept"
        self._vocab_size: int = json.loads((Path(model_dir) / "config.json").read_text())["vocab_size"]
        self._pending = Pending(config.engines, config.deterministic)
        self._orphans: dict[int, tuple[Request, ...]] = {}
        self._arrivals: Arrivals = SimpleQueue()
        self._arrived: deque[Rollout] = deque()
        settings = Settings(str(model_dir), config, seed, None if config.deterministic else last_parts)
        self._servers = Servers(settings, Path(log_path), nodes or [ThisNode()], self._pending, self._arrivals)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> int | None:
        """Version of the weights that the engines sample from; None before the first, and while they differ."""
        return self._servers.version

    @property
    def pids(self) -> list[int]:
        """Process id, which is also the process group id, of each server on its node."""
        return [process.pid for process in self._servers]

    # Sampling.

    def generate(
        self, requests: Sequence[Request], follow: Follow = single_turn, finished: Container[str] = ()
    ) -> Iterator[Rollout]:
        """See `Engine`."""
        if any(request.id not in finished for request in requests):
            self.submit(requests, finished)
        for turn in self._turns():
            if turn.finish != PART and (following := follow(turn)):
                self.expect(turn.id, following)
            else:
                yield turn

    def submit(self, requests: Iterable[Request], finished: Container[str] = ()) -> None:
        """Queue requests, except those whose ids are `finished`.

        Requests of one call that go to one engine enter it together, whatever its timing. A deterministic engine also
        samples the finished ones and drops them, since the last bits of a sample depend on what is sampled beside it.

        Raises UserError for a request that an engine cannot hold, ValueError for an id that is still
        pending, RuntimeError before the first weights. Any thread may call it, also while another takes `results()`.
        """
        self._require_weights("submit")
        batch = [request for request in requests if self._config.deterministic or request.id not in finished]
        if taken := {request.id for request in batch} & self._pending.requests.keys():
            raise ValueError(f"request ids must be new, found pending ones: {sorted(taken)[:8]}")
        for request in batch:
            self._check(request)
        self._pending.add(batch, finished, [process.index for process in self._servers.able])
        self._send(batch)

    def expect(self, request_id: str, following: "Future[Request | Rollout]") -> None:
        """What follows a turn that `results()` has given out: the next request, with the same id, or the whole sample.

        `results()` waits for it, then submits the request or gives out the sample. A deterministic engine samples the
        next turns of all samples together, so that nothing depends on time.
        """
        self._pending.expected.add(request_id)
        following.add_done_callback(lambda done: self._arrivals.put((None, done)))

    def results(self) -> Iterator[Rollout]:
        """Turns and samples in the order in which they finish, until none is pending or expected."""
        return (turn for turn in self._turns() if turn.finish != PART)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[Scored]:
        """See `Engine`. Sequence i is scored by engine i modulo the number of those that have weights. Running requests
        advance meanwhile.

        Raises RuntimeError before the first weights.
        """
        self._require_weights("score")
        able = self._servers.able
        count = len(able)
        ids = [tuple(map(int, sequence)) for sequence in sequences]
        shares = {process: Score(tuple(ids[i::count])) for i, process in enumerate(able[: len(ids)])}
        scores = self._servers.ask(shares)
        self._rest()
        return [scores[i % count][i // count] for i in range(len(ids))]

    # Weights.

    def update_weights(self, image_path: str | Path, version: int) -> None:
        """Load all weights from a safetensors file in Hugging Face names, or from those of an index.

        It may be called while requests run. All engines load at once. Running requests continue with the new weights,
        their caches recomputed unless `cache_at_refit` keeps them. After a `restart` only engines without these weights
        load them, and receive their pending requests again. Raises ValueError when `version` is not newer than the
        engines'.
        """
        behind = self._servers.behind(version)
        self._servers.ask(dict.fromkeys(behind, UpdateWeights(str(image_path), version, self._keep_cache)))
        self._renewed(behind, version)

    def lacking(self, version: int) -> dict[int, int]:
        """See `Engine`. Waits until they have started, unless they can have the weights later, while samples run."""
        behind = self._servers.behind(version)
        if self._config.in_flight and self._servers.able:
            behind = [process for process in behind if not process.starting]
        self._servers.ask(dict.fromkeys(behind, AskHealth()))
        return {process.index: process.pid for process in behind}

    @contextmanager
    def joining(self, places: Mapping[int, JoinRefit]) -> Iterator[None]:
        """See `Engine`."""
        with self._servers.answering({self._servers[index]: place for index, place in places.items()}):
            yield

    @contextmanager
    def receiving(self, engines: Iterable[int], version: int, check: Check) -> Iterator[list[Stall]]:
        """See `Engine`; otherwise as `update_weights`. With `weight_buffer` samples run during the block, too: after it
        every worker has all weights, and puts them into its layers between two steps."""
        processes = [self._servers[index] for index in engines]
        commands = dict.fromkeys(processes, ReceiveWeights(version, check, self._keep_cache))
        if self._config.weight_buffer:
            self._servers.ask(dict.fromkeys(processes, BufferWeights(version, check)))
            yield (stalls := list[Stall]())
            stalls += self._servers.ask(commands)
        else:
            with self._servers.answering(commands) as stalls:
                yield stalls
        self._renewed(processes, version)

    # Life and death.

    def health(self) -> Health:
        """State of the engines, once they have started and between two of their steps; counts are summed."""
        states: list[Health] = self._servers.ask_all(AskHealth())
        versions = {state.version for state in states}
        return Health(
            version=versions.pop() if len(versions) == 1 else None,
            unfinished=sum(state.unfinished for state in states),
            steps=sum(state.steps for state in states),
            generated_tokens=sum(state.generated_tokens for state in states),
        )

    def restart(self) -> bool:
        """See `Engine`. Where nobody else can, or may because of `deterministic`, the next weights send the new servers
        their pending requests again; with `deterministic` also the others of their batch, whose samples are then
        dropped."""
        dead = [process.index for process in self._servers.replace_dead()]
        self._drain()
        arrived = {rollout.id for rollout in self._arrived if rollout.finish != PART}
        able = [process.index for process in self._servers.able]
        if able and not self._config.deterministic:
            self._send(self._pending.move(dead, able, arrived))
            return True
        self._orphans |= {index: self._pending.undrawn(index, arrived) for index in dead}
        self._servers.ask({self._servers[index]: AskHealth() for index in dead})
        return False

    def awaits_weights(self) -> bool:
        """See `Engine`."""
        able = self._servers.able
        return bool(able) and any(p.alive and not p.starting for p in self._servers if p not in able)

    def close(self) -> None:
        """End the servers. Of pending requests, what was drawn is in `last_parts`."""
        self._servers.close()

    def _rest(self) -> None:
        """The engines hold device memory only from new weights, or a call that needs it, to the last score or sample.

        They stay awake between new weights and the probe that always follows: the trainer computes nothing there.
        """
        if self._config.sleep and not self._pending:
            self._servers.ask_all(Sleep())

    def _turns(self) -> Iterator[Rollout]:
        """Turns and samples in the order in which they finish, and parts of those that run, until none is pending or
        expected."""
        while not self._pending.ended():
            rollout = self._arrived.popleft() if self._arrived else self._next()
            if told := rollout if rollout.finish == PART else self._pending.finish(rollout):
                yield told
                if told.finish != PART:
                    self._servers[self._pending.engine_of(told.id)].received(told.id)
        self._rest()

    def _next(self) -> Rollout:
        """The next part, finished turn or sample, waited for; what was expected is submitted meanwhile."""
        while True:
            self._send(self._pending.release())
            process, arrival = self._arrival()
            if isinstance(arrival, Future):
                arrival = self._followed(arrival.result())
            if arrival is not None:
                if self._is_waited_for(arrival):
                    return arrival
            elif process and process in self._servers and self._pending.on(process.index):
                self._arrivals.put((process, None))  # until it is replaced
                raise self._servers.death_of(process)

    def _arrival(self) -> Arrival:
        """Raises EngineDied for a server that is stuck."""
        while True:
            if stuck := next((process for process in self._servers if process.stuck), None):
                raise self._servers.death_of(stuck)
            with suppress(Empty):
                return self._arrivals.get(timeout=LOOK_SECONDS)

    def _followed(self, following: Request | Rollout) -> Rollout | None:
        """A whole sample; the next turn of one goes to the engine of the turn before."""
        if isinstance(following, Rollout):
            return following
        self._check(following)
        if self._pending.follow(following):
            self._send([following])
        return None

    def _drain(self) -> None:
        """Take what has arrived, and drop the end marks of replaced servers."""
        for _ in range(self._arrivals.qsize()):
            process, arrival = self._arrivals.get()
            if isinstance(arrival, Rollout):
                if self._is_waited_for(arrival):
                    self._arrived.append(arrival)
            elif arrival is not None or (process and process in self._servers):
                self._arrivals.put((process, arrival))

    def _is_waited_for(self, rollout: Rollout) -> bool:
        """Keeps the part of a sample, and leaves finished ones to who takes them."""
        return rollout.finish != PART or self._pending.grow(rollout)

    def _send(self, requests: Iterable[Request]) -> None:
        """Give each engine its share."""
        told = [_as_told(request) for request in requests]
        shares = {process: self._pending.share(told, process.index) for process in self._servers}
        dead = [process for process, share in shares.items() if share and not process.send(Submit(tuple(share)))]
        if dead:
            raise self._servers.death_of(dead[0])

    def _renewed(self, processes: Sequence[EngineProcess], version: int) -> None:
        """Records that these have the weights, and sends the pending requests of replaced ones again."""
        for process in processes:
            process.version = version
        self._send([request for process in processes for request in self._orphans.pop(process.index, ())])

    def _require_weights(self, action: str) -> None:
        if self.version is None:
            raise RuntimeError(f"cannot {action}: an engine has no weights yet, call update_weights() first")

    def _check(self, request: Request) -> None:
        limit = self._config.max_model_len
        length = len(request.prompt_ids) + request.sampling.max_new_tokens
        if not request.prompt_ids or request.sampling.max_new_tokens < 1 or length > limit:
            raise UserError(
                f"request {request.id}: expected a prompt and new tokens of at most {limit} together, found "
                f"{len(request.prompt_ids)} + {request.sampling.max_new_tokens}: change max_model_len or "
                "max_new_tokens"
            )
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self._vocab_size:
            raise UserError(
                f"request {request.id}: expected token ids in [0, {self._vocab_size}), found "
                f"{min(request.prompt_ids)} to {max(request.prompt_ids)}: tokenizer and model do not match"
            )


def _as_told(request: Request) -> Request:
    """The request as an engine needs it: of what was sampled before, the ids."""
    if request.begun is None:
        return request
    ids_alone = replace(request.begun, logprobs=request.begun.logprobs[:0], routes=None, kept=None, passports=())
    return replace(request, begun=ids_alone)
