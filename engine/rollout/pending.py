"""Which requests are pending, and on which engine: the bookkeeping of `client.RolloutEngine`, without any process.

A request is pending until its sample has been given out. A sample of several turns is expected between two of them,
while its environment works. With `deterministic` its next turn is held until those of all other samples are known.
"""

from collections.abc import Container, Iterable, Sequence
from threading import Lock

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
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self.requests or self.expected)

    def add(self, batch: Sequence[Request], finished: Container[str]) -> None:
        """Assigns new requests to engines. Those whose ids are `finished` run, but are not waited for."""
        named = {request.id: request for request in batch}
        with self._lock:
            self._engine_of |= zip(named, place(batch, self._loads()), strict=True)
            self._batch |= named
            self.requests |= {name: request for name, request in named.items() if name not in finished}

    def share(self, requests: Iterable[Request], engine: int) -> list[Request]:
        """Those of `requests` that are this engine's."""
        return [request for request in requests if self._engine_of[request.id] == engine]

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
            return tuple(pending)
        elsewhere = self.expected | self._held.keys()
        batch = [name for name in self._batch if self._engine_of[name] == engine and name not in elsewhere]
        return tuple(self.requests.get(name, self._batch[name]) for name in batch)

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

    def finish(self, rollout: Rollout) -> bool:
        """False for a sample that nobody waits for."""
        with self._lock:
            waited_for = rollout.id in self.requests or rollout.id in self.expected
            self.requests.pop(rollout.id, None)
            self.expected.discard(rollout.id)
        return waited_for

    def ended(self) -> bool:
        """Whether nothing is pending. Then the batch is forgotten."""
        with self._lock:
            if self:
                return False
            self._batch.clear()
            self._engine_of.clear()
            return True

    def _loads(self) -> list[int]:
        """Tokens that each engine may still sample."""
        loads = [0] * self.engines
        for request_id, request in self.requests.items():
            loads[self._engine_of[request_id]] += tokens(request)
        return loads
