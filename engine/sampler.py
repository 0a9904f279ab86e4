"""Samples for a batch of requests, whatever happens to the engine's process meanwhile."""

from collections.abc import Callable, Sequence

from cascade_rl.engine.refit import Refit
from cascade_rl.engine.rollout.client import EngineDied, RolloutEngine
from cascade_rl.engine.sample import Request, Rollout

RESTARTS = 2  # of one batch; an engine that dies more often dies of the batch


def sample(
    engine: RolloutEngine,
    refit: Refit,
    requests: Sequence[Request],
    *,
    finished: Callable[[], None],
    died: Callable[[EngineDied], None],
) -> list[Rollout]:
    """One rollout per request, in the order of the requests; rank 0 only.

    An engine that dies, also while it starts, is restarted with the same weights, and what it had not finished
    is drawn again with the same seeds. `finished` is called for each sample, `died` for each death. Raises
    EngineDied after RESTARTS restarts.
    """
    rollouts: dict[str, Rollout] = {}
    for restarts in range(RESTARTS + 1):
        try:
            if restarts == 0:
                engine.submit(requests)
            else:
                engine.restart()
                refit.send()
            for rollout in engine.results():
                rollouts[rollout.id] = rollout
                finished()
            break
        except EngineDied as death:
            if restarts == RESTARTS:
                raise
            died(death)
    return [rollouts[request.id] for request in requests]
