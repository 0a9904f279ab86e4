"""What the death of one of two engines costs: `python -m tests.chaos.lost_engine` kills one at three random moments.

Of each it prints the seconds until the other engine has told of all samples that were cut, the tokens that had
been told and were not drawn again, and about how many the dead engine had drawn since, which are.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from cascade_rl.engine.core.rollouts import Rollout, Sampling
from cascade_rl.engine.rollout.client import EngineDied
from tests.engine.rollout.conftest import CONFIG, Tiny
from tests.engine.rollout.test_two_engines import groups

EVERY_S, TOKENS = 1.0, 230


def kill_one(pair: Tiny, moment: float, number: int) -> str:
    """Kills the second engine soon after it has told `moment` of its tokens. A row: the last number is its time since
    then, at its rate."""
    requests = [replace(request, id=f"{number}/{request.id}") for request in groups(6, Sampling(TOKENS))]
    engine = pair.engine
    told, died, began = 0, 0.0, time.monotonic()
    last = began
    arriving = engine.generate(requests)
    own = [request.id for request in engine._pending.on(1)]
    try:
        for rollout in arriving:
            if rollout.id in own:
                told, last = told + len(rollout.token_ids), time.monotonic()
            if told >= moment * TOKENS * len(own) and not died:
                time.sleep(random.uniform(0, EVERY_S))
                os.killpg(engine.pids[1], signal.SIGKILL)
                died = time.monotonic()
    except EngineDied:
        engine.restart()
    since = max(died - last, 0.0) * told / (last - began)
    known = {name: request.begun for name in own if (request := engine._pending.requests.get(name))}
    kept = sum(len(begun.token_ids) for begun in known.values() if begun)
    back = _seconds_until_all(engine.generate(()), set(known)) - died
    engine.update_weights(pair.images[0], engine.version or 0)
    return f"| {moment:.0%} | {len(known)} | {back:.1f} | {kept} | {since:.0f} |"


def _seconds_until_all(arriving: Iterator[Rollout], waited_for: set[str]) -> float:
    """When all of these had told something."""
    at = 0.0
    for rollout in arriving:
        if rollout.id in waited_for:
            waited_for.remove(rollout.id)
            at = at if waited_for else time.monotonic()
    return at


def main() -> None:
    random.seed(3)
    with TemporaryDirectory() as folder:
        pair = Tiny("llama", Path(folder), replace(CONFIG, engines=2, part_every_s=EVERY_S))
        with pair.engine:
            pair.load(0)
            print("| killed at | samples cut | seconds to be back | tokens kept | drawn since, about |", flush=True)
            for number in range(3):
                print(kill_one(pair, random.uniform(0.05, 0.8), number), flush=True)


if __name__ == "__main__":
    main()
