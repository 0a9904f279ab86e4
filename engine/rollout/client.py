"""The trainer's side of its rollout engines."""

import json
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from cascade_rl.engine.cluster.node import Node, ThisNode
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Request, Rollout, Scored
from cascade_rl.engine.core.settings import Check, RolloutConfig
from cascade_rl.engine.rollout.engine_layout import engines_per_node
from cascade_rl.engine.rollout.placement import place, tokens
from cascade_rl.engine.rollout.protocol import (
    AskHealth,
    Health,
    JoinRefit,
    Pause,
    ReceiveWeights,
    Resume,
    Score,
    Settings,
    Sleep,
    Submit,
    UpdateWeights,
)
from cascade_rl.engine.rollout.server_process import Arrivals, EngineDied, EngineProcess

__all__ = ["EngineDied", "RolloutEngine"]


class RolloutEngine:
    """`config.engines` vLLM engines, each in a process of its own, behind one interface; a context manager.

    Guarantees: every submitted id comes out of `results()` exactly once, also across `restart()`; a sample
    never mixes weight versions without its spans saying so; after `update_weights` returns, no cached key,
    value or state of older weights is used and the file may be overwritten. Which engine draws a sample
    follows from what was submitted and collected before, and its seed is its own. All turns of a sample are drawn
    by one engine.

    The constructor returns at once while the engines start; `health()` waits for them. They start without
    weights: the first ones come from `update_weights`, and sampling before is an error. Create it in a thread
    that outlives it: the servers are killed with that thread. Engine 0 logs to `log_path`, engine i to the
    same name with `-i` before its suffix. Each of `nodes` runs as many engines; without any, they run on this one.

    Every method raises `EngineDied` when a server that it needs is gone; the others go on meanwhile.
    """

    def __init__(
        self,
        model_dir: str | Path,
        config: RolloutConfig,
        seed: int,
        log_path: str | Path,
        nodes: Sequence[Node] | None = None,
    ):
        self._nodes = nodes or [ThisNode()]
        self._settings = Settings(str(model_dir), config, seed)
        self._log_path = Path(log_path)
        self._vocab_size: int = json.loads((Path(model_dir) / "config.json").read_text())["vocab_size"]
        self._pending: dict[str, Request] = {}
        self._batch: dict[str, Request] = {}  # the first turns of all that was submitted since nothing was pending
        self._engine_of: dict[str, int] = {}  # of these
        self._expected: set[str] = set()
        self._held: dict[str, Request] = {}  # next turns that wait for those of the other samples
        self._orphans: dict[int, tuple[Request, ...]] = {}
        self._arrivals: Arrivals = SimpleQueue()
        self._arrived: deque[Rollout] = deque()
        self._processes = [self._start(index) for index in range(config.engines)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> int | None:
        """Version of the weights that all engines sample from; None before the first, and until they agree."""
        versions = {process.version for process in self._processes}
        return versions.pop() if len(versions) == 1 else None

    @property
    def pids(self) -> list[int]:
        """Process id, which is also the process group id, of each server on its node."""
        return [process.pid for process in self._processes]

    def submit(self, requests: Iterable[Request], drawn: Container[str] = ()) -> None:
        """Queue requests, without those whose ids are `drawn`: their samples are there already.

        Those of one call that go to one engine enter it together, whatever its timing. A deterministic engine draws
        what is `drawn` too and drops it, since the last bits of a sample depend on what is drawn beside it.

        Raises UserError for a request that an engine cannot hold, ValueError for an id that is still
        pending, RuntimeError before the first weights.
        """
        self._require_weights("submit")
        deterministic = self._settings.config.deterministic
        batch = {request.id: request for request in requests if deterministic or request.id not in drawn}
        if taken := batch.keys() & self._pending.keys():
            raise ValueError(f"request ids must be new, found pending ones: {sorted(taken)[:8]}")
        for request in batch.values():
            self._check(request)
        self._engine_of |= zip(batch, place(list(batch.values()), self._loads()), strict=True)
        self._batch |= batch
        self._pending |= {name: request for name, request in batch.items() if name not in drawn}
        self._send(list(batch.values()))

    def expect(self, request_id: str, following: "Future[Request | Rollout]") -> None:
        """What follows a turn that `results()` has given out: the request of the next one, with the same id, or the
        whole sample. `results()` goes on until it is there, submits the one and gives out the other. A deterministic
        engine draws the next turns of all samples together, so that time decides nothing."""
        self._expected.add(request_id)
        following.add_done_callback(lambda done: self._arrivals.put((None, done)))

    def results(self) -> Iterator[Rollout]:
        """Finished samples in finishing order, until none is pending or expected. Waits for ever on a paused engine."""
        while self._pending or self._expected:
            rollout = self._arrived.popleft() if self._arrived else self._next()
            if rollout.id in self._pending or rollout.id in self._expected:  # not one that was there already
                self._pending.pop(rollout.id, None)
                self._expected.discard(rollout.id)
                yield rollout
        self._batch.clear()
        self._engine_of.clear()
        self._rest()

    def pause(self) -> None:
        """Stop between two steps; running requests keep their place. On return nothing runs."""
        self._set_paused(True)

    def resume(self) -> None:
        """Undo `pause`."""
        self._set_paused(False)

    def update_weights(self, image_path: str | Path, version: int) -> None:
        """Load all weights from a safetensors file in Hugging Face names, also while requests run.

        All engines load at once. Running requests go on with the new weights, their caches recomputed. After a
        `restart` only engines without these weights load them, and get their pending requests again. Raises
        ValueError when `version` is not newer than the engines'.
        """
        behind = self._behind(version)
        self._ask(dict.fromkeys(behind, UpdateWeights(str(image_path), version)))
        self._renewed(behind, version)

    def lacking(self, version: int) -> dict[int, int]:
        """The engines without these weights, and their process ids, once they have started.

        Raises ValueError as `update_weights` does.
        """
        behind = self._behind(version)
        self._ask(dict.fromkeys(behind, AskHealth()))
        return {process.index: process.pid for process in behind}

    @contextmanager
    def joining(self, places: Mapping[int, JoinRefit]) -> Iterator[None]:
        """The workers of these engines join the refits to come, while the trainer's ranks do in the block."""
        with self._answering({self._processes[index]: place for index, place in places.items()}):
            yield

    @contextmanager
    def receiving(self, engines: Iterable[int], version: int, check: Check) -> Iterator[None]:
        """These engines take the weights that the trainer's ranks send in the block; otherwise `update_weights`."""
        processes = [self._processes[index] for index in engines]
        with self._answering(dict.fromkeys(processes, ReceiveWeights(version, check))):
            yield
        self._renewed(processes, version)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[Scored]:
        """Log-probs of each token after the first, at temperature 1, and the routes taken.

        Sequence i is scored by engine i modulo their number. Running requests advance meanwhile. Raises
        RuntimeError before the first weights and on a paused engine.
        """
        self._require_weights("score")
        if any(process.paused for process in self._processes):
            raise RuntimeError("expected a running engine, found a paused one: call resume() before score()")
        count = len(self._processes)
        ids = [tuple(map(int, sequence)) for sequence in sequences]
        shares = {process: Score(tuple(ids[process.index :: count])) for process in self._processes[: len(ids)]}
        scores = self._ask(shares)
        self._rest()
        return [scores[i % count][i // count] for i in range(len(ids))]

    def health(self) -> Health:
        """State of the engines, once they have started and between two of their steps; counts are summed."""
        states: list[Health] = self._ask(dict.fromkeys(self._processes, AskHealth()))
        versions = {state.version for state in states}
        return Health(
            version=versions.pop() if len(versions) == 1 else None,
            unfinished=sum(state.unfinished for state in states),
            paused=any(state.paused for state in states),
            steps=sum(state.steps for state in states),
            generated_tokens=sum(state.generated_tokens for state in states),
        )

    def restart(self) -> None:
        """Replace the servers that are dead. `update_weights` sends them their pending requests again, and with
        `deterministic` the others of their batch, whose samples are then dropped."""
        dead = [process for process in self._processes if not process.alive]
        for process in dead:
            process.kill()
            self._processes[process.index] = self._start(process.index)
        self._drain()
        for process in dead:
            self._orphans[process.index] = self._undrawn(process)

    def close(self) -> None:
        """End the servers. Pending requests are lost."""
        for process in self._processes:
            process.kill()

    def _start(self, index: int) -> EngineProcess:
        path = self._log_path
        log_path = path.with_stem(f"{path.stem}-{index}") if index else path
        node, there = divmod(index, engines_per_node(self._settings.config.engines, len(self._nodes)))
        return EngineProcess(self._settings, index, log_path, self._arrivals, self._nodes[node], there)

    def _set_paused(self, paused: bool) -> None:
        for process in self._processes:
            process.paused = paused
        self._ask(dict.fromkeys(self._processes, Pause() if paused else Resume()))

    def _rest(self) -> None:
        """The engines hold device memory only from a call that needs it to the last sample."""
        if self._settings.config.sleep and not self._pending and not self._expected:
            self._ask(dict.fromkeys(self._processes, Sleep()))

    def _loads(self) -> list[int]:
        """Tokens that each engine may still draw."""
        loads = [0] * len(self._processes)
        for request_id, request in self._pending.items():
            loads[self._engine_of[request_id]] += tokens(request)
        return loads

    def _pending_on(self, process: EngineProcess) -> list[Request]:
        return [r for r in self._pending.values() if self._engine_of[r.id] == process.index]

    def _undrawn(self, process: EngineProcess) -> tuple[Request, ...]:
        """What a server that was replaced has to draw, in the order in which it was submitted."""
        arrived = {rollout.id for rollout in self._arrived}
        pending = [r for r in self._pending_on(process) if r.id not in arrived and r.id not in self._held]
        if not (self._settings.config.deterministic and pending):
            return tuple(pending)
        elsewhere = self._expected | self._held.keys()
        batch = [name for name in self._batch if self._engine_of[name] == process.index and name not in elsewhere]
        return tuple(self._pending.get(name, self._batch[name]) for name in batch)

    def _next(self) -> Rollout:
        """The next finished sample, waited for; what was expected is submitted meanwhile."""
        while True:
            if self._held and self._pending.keys() == self._held.keys() and not self._expected:
                self._release()
            process, arrival = self._arrivals.get()
            if isinstance(arrival, Future):
                arrival = self._followed(arrival.result())
            if arrival is not None:
                return arrival
            if process in self._processes and self._pending_on(process):
                self._arrivals.put((process, None))  # until it is replaced
                raise self._died(process)

    def _followed(self, following: Request | Rollout) -> Rollout | None:
        """A whole sample; the next turn of one is submitted to the engine of the turn before."""
        if isinstance(following, Rollout):
            return following
        self._check(following)
        self._expected.discard(following.id)
        self._pending[following.id] = following
        if self._settings.config.deterministic:
            self._held[following.id] = following
        else:
            self._send([following])
        return None

    def _release(self) -> None:
        held, self._held = self._held, {}
        self._send([held[name] for name in self._batch if name in held])

    def _drain(self) -> None:
        """Take what has arrived, and forget the ends of servers that were replaced."""
        for _ in range(self._arrivals.qsize()):
            process, arrival = self._arrivals.get()
            if isinstance(arrival, Rollout):
                self._arrived.append(arrival)
            elif arrival is not None or process in self._processes:
                self._arrivals.put((process, arrival))

    def _send(self, requests: Sequence[Request]) -> None:
        """Give each engine its share."""
        homes = [
            (process, [r for r in requests if self._engine_of[r.id] == process.index]) for process in self._processes
        ]
        dead = [process for process, share in homes if share and not process.send(Submit(tuple(share)))]
        if dead:
            raise self._died(dead[0])

    def _behind(self, version: int) -> list[EngineProcess]:
        behind = [process for process in self._processes if process.version != version]
        newest = max((p.version for p in self._processes if p.version is not None), default=-1)
        if version < newest or not behind:
            raise ValueError(f"weight version must grow: expected more than {newest}, found {version}")
        return behind

    def _renewed(self, processes: Sequence[EngineProcess], version: int) -> None:
        """They have the weights; what was pending on those that were replaced is sent again."""
        for process in processes:
            process.version = version
        self._send([request for process in processes for request in self._orphans.pop(process.index, ())])
        self._rest()

    def _ask(self, commands: Mapping[EngineProcess, Any]) -> list[Any]:
        """The answers of several servers, which work at the same time."""
        with self._answering(commands) as answers:
            pass
        return answers

    @contextmanager
    def _answering(self, commands: Mapping[EngineProcess, Any]) -> Iterator[list[Any]]:
        """Servers work on their commands while the block runs; their answers are there behind it."""
        answers = list[Any]()
        asked = [process for process, command in commands.items() if process.send(command)]
        yield answers
        replies = {process: process.reply() for process in asked}
        for process in commands:
            if (reply := replies.get(process)) is None:
                raise self._died(process)
            answers.append(reply.value)

    def _died(self, process: EngineProcess) -> EngineDied:
        return process.obituary(tuple(request.id for request in self._pending_on(process)))

    def _require_weights(self, action: str) -> None:
        if self.version is None:
            raise RuntimeError(f"cannot {action}: an engine has no weights yet, call update_weights() first")

    def _check(self, request: Request) -> None:
        limit = self._settings.config.max_model_len
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
