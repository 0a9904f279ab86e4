"""What a stage needs of a sampler. `client.RolloutEngine`, on vLLM, is one; a test's own takes ten lines."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Protocol

from cascade_rl.engine.core.rollouts import Request, Rollout, Scored
from cascade_rl.engine.core.settings import Check
from cascade_rl.engine.rollout.protocol import JoinRefit, Stall

Follow = Callable[[Rollout], Future[Request | Rollout] | None]
"""What follows a turn: the next request of its sample, or the whole sample. None where the turn is the whole sample."""


def single_turn(_turn: Rollout) -> None:
    """The `Follow` of samples without an environment."""


class Engine(Protocol):
    """Samples from the weights that it received last. Only rank 0 has one."""

    def generate(
        self, requests: Sequence[Request], follow: Follow = single_turn, finished: Container[str] = ()
    ) -> Iterator[Rollout]:
        """Whole samples, in the order in which they finish, of all requests that are not `finished` and of those that
        an earlier call left pending. Between them, parts of turns that still run, if the engine tells any.

        A request that has `begun` goes on from there; an engine may also draw its whole sample.

        Raises EngineDied. After `restart`, `generate(())` continues with what is pending.
        """
        ...

    def submit(self, requests: Sequence[Request]) -> None:
        """Adds requests to those of a `generate` that another thread takes the samples of."""
        ...

    def score(self, sequences: Sequence[Sequence[int]]) -> list[Scored]:
        """Log-probs of each token after the first, at temperature 1, and the experts that it was routed to."""
        ...

    def restart(self) -> bool | None:
        """Replaces what is dead. True: others go on with its samples at once, and the new ones join at the next
        weights. Otherwise waits until they have started: `generate` continues after the next weights. Raises EngineDied
        where one dies again."""
        ...

    def awaits_weights(self) -> bool:
        """Whether one that replaces a dead one has started and has no weights yet, while others sample."""
        ...

    def lacking(self, version: int) -> dict[int, int]:
        """The engines that lack the weights of this version, and their process ids; of engines in flight, those that
        have started. Raises ValueError for an older version than the engines have."""
        ...

    def joining(self, places: Mapping[int, JoinRefit]) -> AbstractContextManager[None]:
        """In the block, the workers of these engines join the group of the refits that follow."""
        ...

    def receiving(self, engines: Iterable[int], version: int, check: Check) -> AbstractContextManager[list[Stall]]:
        """In the block, these engines receive the weights that the trainer's ranks send. Samples that are running go on
        with them. After it, the list says how long each engine stood still."""
        ...
