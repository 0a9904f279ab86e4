"""What rank 0 records of its engines."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cascade_rl.engine.rollout.client import EngineDied
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.rank_zero import RecordedBatch
from cascade_rl.rl_stages.run.run_folder import StageFolder


def test_an_engine_that_hung_is_an_event_of_the_run_folder(tmp_path: Path) -> None:
    stage = SftStage(name="sft", domain="math", data=("generate:math",), steps=1, token_budget=64)
    folder, said = StageFolder(tmp_path, 1, stage, None, "", None), list[str]()
    batch: Any = object.__new__(RecordedBatch)
    log = SimpleNamespace(progress=SimpleNamespace(say=said.append))
    batch.deaths, batch.zero = [], SimpleNamespace(folder=folder, log=log)
    batch.record_death(EngineDied(-9, ("a",), Path("log"), "tail", "made no step and sent nothing for 600 s"))
    (event,) = folder.events.rows()
    assert event["event"] == "engine_died"
    assert "made no step and sent nothing for 600 s and was ended with exit code -9" in event["detail"]
    assert said == [f"{event['detail']}; starting it again"]
