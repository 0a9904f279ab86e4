"""What rank 0 records of its engines."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cascade_rl.engine.core.rollouts import PART, Passport, Request, Rollout, Sampling
from cascade_rl.engine.rollout.client import EngineDied
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.rank_zero import RecordedBatch
from cascade_rl.rl_stages.run.ledger import Ledger
from cascade_rl.rl_stages.run.run_folder import StageFolder


def test_an_engine_that_hung_is_an_event_of_the_run_folder(tmp_path: Path) -> None:
    stage = SftStage(name="sft", domain="math", data=("generate:math",), steps=1, token_budget=64)
    folder, said = StageFolder(tmp_path, 1, stage, None, "", None), list[str]()
    batch: Any = object.__new__(RecordedBatch)
    log = SimpleNamespace(progress=SimpleNamespace(say=said.append))
    batch.deaths, batch.zero = [], SimpleNamespace(folder=folder, log=log)
    batch.record_death(EngineDied(-9, ("a",), Path("log"), "tail", "made no token and sent nothing for 600 s"))
    (event,) = folder.events.rows()
    assert event["event"] == "engine_died"
    assert "made no token and sent nothing for 600 s and was ended with exit code -9" in event["detail"]
    assert said == [f"{event['detail']}; starting it again"]


class CutEngine:
    """Tells two parts of a sample and one of its second turn, and is gone."""

    def awaits_weights(self) -> bool:
        return False

    def generate(self, requests: Sequence[Request], *_: Any) -> Iterator[Rollout]:
        self.asked = list(requests)
        for prompt, start, ids in (((5, 6), 2, [1, 2]), ((5, 6), 4, [3]), ((5, 6, 1, 2, 3, 9), 6, [4])):
            part = Rollout("a", np.array(prompt), np.array(ids), np.zeros(len(ids)), None, ((0, 0),), PART)
            yield replace(part, passports=(Passport(start, start + len(ids), 1, 1.0, 0, 1, 2, 3),))
        raise KeyboardInterrupt


def test_a_new_attempt_goes_on_from_the_parts_of_the_first_turn(tmp_path: Path) -> None:
    """Its environment is gone, and with it the turns that answered it."""
    for begun in (None, [1, 2, 3]):
        engine = CutEngine()
        with Ledger() as ledger:
            ledger.open(tmp_path / "ledger", "weights")
            episodes = SimpleNamespace(follow=None)
            zero: Any = SimpleNamespace(engine=engine, ledger=ledger, episodes=episodes)
            phase: Any = SimpleNamespace(advance=lambda _: None)
            asked = [Request("a", (5, 6), Sampling(9), seed=1)]
            batch = RecordedBatch(zero, None, asked, 0, phase)  # type: ignore[arg-type]
            with pytest.raises(KeyboardInterrupt):
                batch.collect()
        [request] = engine.asked
        assert (request.begun.token_ids.tolist() if request.begun else None) == begun
