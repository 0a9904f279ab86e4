"""The watchdog speaks while a phase is too long, and only then."""

import re
import time

from cascade_rl.rl_stages.run.watchdog import Watchdog


def test_a_slow_phase_is_told_with_rank_and_pending_samples() -> None:
    told: list[str] = []
    dog, began = Watchdog(3, 0.05, told.append), time.monotonic()
    with dog.phase("generation"), dog.waiting_for(lambda: [f"s{i}" for i in range(10)]):
        while not told:
            time.sleep(0.13)
    assert len(told) <= (time.monotonic() - began) / 0.05
    assert re.match(r"rank 3 has been in generation for \d+ s; 10 samples pending: s0, s1", told[0])
    assert told[0].endswith("s7 and 2 more")


def test_a_phase_in_time_is_not_told() -> None:
    told: list[str] = []
    dog = Watchdog(0, 600.0, told.append)
    with dog.phase("update"):
        time.sleep(0.01)
    assert told == []
