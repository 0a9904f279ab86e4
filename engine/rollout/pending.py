"""Which requests are pending, and on which engine: the bookkeeping of `client.RolloutEngine`, without any process.

Of a sample that is being drawn, the parts that its engine has told are kept: it can go on from them on any engine.

A request is pending until its sample has been given out. A sample of several turns is expected between two of them,
while its environment works. With `deterministic` its next turn is held until those of all other samples are known.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from threading import Lock

from cascade_rl.engine.core.parts import joined
from cascade_rl.engine.core.rollouts import Request, Rollout
from cascade_rl.engine.rollout.placement import place, tokens


class Pending:
    """The requests of all engines, from their submission to their sample. One thread may add some while another takes
    samples out."""

    def __init__(self, engines: int, deterministic: bool) -> None:
        self.engines, self.deterministic = engines, deterministic
        self.requests: dict[str, Request] = {}
        self.expected: set[str] = set()
        self._batch: dict[str, Request] = {}  # the first turns of all that was submitted since nothing was pending
        self._engine_of: dict[str, int] = {}  # of these
        self._held: dict[str, Request] = {}
        self._parts: dict[str, list[Rollout]] = {}  # since the request was sent
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self.requests or self.expected)

    def add(self, batch: Sequence[Request], finished: Container[str], able: Sequence[int]) -> None:
        """Assigns new requests to the engines that are `able`. Those whose ids are `finished` run, but are not waited
        for."""
        named = {request.id: request for request in batch}
        with self._lock:
            self._place(batch, able)
            self._batch |= named
            self.requests |= {name: request for name, request in named.items() if name not in finished}

    def share(self, requests: Iterable[Request], engine: int) -> list[Request]:
        """Those of `requests` that are this engine's."""
        return [request for request in requests if self._engine_of[request.id] == engine]

    def engine_of(self, request_id: str) -> int:
        """The engine that draws this sample, or has drawn it."""
        return self._engine_of[request_id]

    def on(self, engine: int) -> list[Request]:
        """The engine's pending requests, in the order in which they were submitted."""
        return self.share(list(self.requests.values()), engine)

    def undrawn(self, engine: int, arrived: Container[str]) -> tuple[Request, ...]:
        """What the replacement of a dead engine must sample again. `arrived` are ids of samples that need not be.

        With `deterministic` that is the engine's whole batch, since the last bits of a sample depend on what is sampled
        beside it.
        """
        pending = [r for r in self.on(engine) if r.id not in arrived and r.id not in self._held]
        if not (self.deterministic and pending):
            return tuple(self._gone_on(request) for request in pending)
        elsewhere = self.expected | self._held.keys()
        batch = [name for name in self._batch if self._engine_of[name] == engine and name not in elsewhere]
        return tuple(self.requests.get(name, self._batch[name]) for name in batch)

    def move(self, gone: Container[int], able: Sequence[int], arrived: Container[str]) -> list[Request]:
        """Assigns the samples of engines that are gone to those that are `able`, prompt by prompt. Returns what these
        must sample: each goes on from its last part. `arrived` are ids of samples that need not be."""
        with self._lock:
            names = [name for name, engine in self._engine_of.items() if engine in gone]
            moved = [name for name in names if name in self.requests or name in self.expected]
            self._place([self._batch[name] for name in moved], able)
        return [self._gone_on(self.requests[name]) for name in moved if name in self.requests and name not in arrived]

    def grow(self, part: Rollout) -> bool:
        """Keeps a part. False for one of a sample that nobody waits for."""
        if waited_for := part.id in self.requests:
            self._parts.setdefault(part.id, []).append(part)
        return waited_for

    def follow(self, request: Request) -> bool:
        """The next turn of an expected sample is pending from now on. True where it can be sent at once."""
        with self._lock:
            self.requests[request.id] = request
            self.expected.discard(request.id)
        if self.deterministic:
            self._held[request.id] = request
        return not self.deterministic

    def release(self) -> list[Request]:
        """The held turns, once nothing else is pending or expected."""
        if self.expected or not self._held or self.requests.keys() != self._held.keys():
            return []
        held, self._held = self._held, {}
        return [held[name] for name in self._batch if name in held]

    def finish(self, rollout: Rollout) -> Rollout | None:
        """The whole turn or sample, with what an engine had drawn of it before; None if nobody waits for it."""
        with self._lock:
            request = self.requests.pop(rollout.id, None)
            if request is None and rollout.id not in self.expected:
                return None
            self.expected.discard(rollout.id)
        self._parts.pop(rollout.id, None)
        return joined([request.begun, rollout]) if request and request.begun else rollout

    def ended(self) -> bool:
        """Whether nothing is pending. Then the batch is forgotten."""
        with self._lock:
            if self:
                return False
            self._batch.clear()
            self._engine_of.clear()
            return True

    def _place(self, requests: Sequence[Request], able: Sequence[int]) -> None:
        loads = self._loads()
        places = place(requests, [loads[engine] for engine in able])
        self._engine_of |= {request.id: able[number] for request, number in zip(requests, places, strict=True)}

    def _gone_on(self, request: Request) -> Request:
        """The request, with all that has been drawn of its sample."""
        if parts := self._parts.pop(request.id, []):
            before = [request.begun] if request.begun else []
            self.requests[request.id] = replace(request, begun=joined([*before, *parts]))
        return self.requests[request.id]

    def _loads(self) -> list[int]:
        """Tokens that each engine may still sample."""
        loads = [0] * self.engines
        for request_id, request in self.requests.items():
            loads[self._engine_of[request_id]] += tokens(request)
        return loads
