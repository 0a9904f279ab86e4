"""`cascade bench async`: what it compares, where its processes run, what it reads from a run. A long test of
tests/rl_stages/test_cascade_end_to_end.py runs it."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.bench import asynchronous
from cascade_rl.launchers.bench.asynchronous import benched, pinned, run, summary
from cascade_rl.launchers.cascade2_short import CASCADE
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.sandbox.process_tree import descendants
from tests.until import until


def test_both_ways_differ_in_nothing_but_the_placement(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "run", CASCADE) as (source, _):
        with pytest.raises(UserError, match="expected a stage of RL after a finished stage"):
            benched(source, "in turn", 5)
        (source.stage("sft").root / "done").touch()
        in_turn, one_ahead = (benched(source, way, 5) for way in ("in turn", "ahead"))
    assert (in_turn.rollout.placement, in_turn.rollout.max_staleness) == ("colocated", 0)
    assert (one_ahead.rollout.placement, one_ahead.rollout.max_staleness) == ("disaggregated", 1)
    assert in_turn.stages == one_ahead.stages and in_turn.base == one_ahead.base
    (stage,) = in_turn.stages
    assert isinstance(stage, GrpoStage) and stage.name == "if_rl"
    assert (stage.steps, stage.sampling.max_new_tokens) == (5, CASCADE.rollout.max_model_len // 2)


def test_servers_and_what_they_start_are_on_the_core_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, engine = asynchronous.two_cores()
    monkeypatch.setattr(asynchronous, "PIN_S", 0.01)
    wait = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with pinned(trainer, engine):
        children = {
            core: subprocess.Popen([sys.executable, "-c", wait, name], stdin=subprocess.PIPE)
            for core, name in ((engine, asynchronous.SERVER), (trainer, "rank"))
        }
        try:
            for core, child in children.items():
                until(partial(_is_on, child.pid, core))
        finally:
            for child in children.values():
                child.communicate(b"\n")


def test_the_sampler_is_named_with_its_version() -> None:
    assert re.fullmatch(r"vllm(-cpu)? \d+\.\d+\S*", asynchronous.sampler())


def test_fewer_steps_than_can_be_timed_are_refused() -> None:
    with pytest.raises(UserError, match="--steps: expected at least 3"):
        run(None, "", Path("nowhere"), 2, 1)


def test_a_run_is_timed_from_the_end_of_its_second_step(tmp_path: Path) -> None:
    """Four samples a step: 2 s and 4 s for the third and fourth step, of which the trainer waits 1 s each."""
    stage = StageFolder(tmp_path, 1, CASCADE.stage("if_rl"), None, "", None)
    (tmp_path / "rollouts").mkdir()
    for step, end in enumerate((100.0, 110.0, 112.0, 116.0), start=1):
        stage.events.append({"time": end, "event": "step", "step": step, "seconds": {"generation": 1.0, "update": 9.0}})
        stage.metrics.append({"step": step, "reward": step / 10, "age": float(step > 1)})
        answers = pa.table({"token_ids": [[1] * step] * 3 + [[1] * 10 * step]})
        parquet.write_table(answers, stage.rollouts(step))
    found = summary(stage, "ahead")
    assert found.seconds == pytest.approx(6 / 8) and found.waiting == pytest.approx(2 / 6)
    assert (found.age, found.reward) == (pytest.approx(3 / 4), pytest.approx(0.35))
    assert (found.mean, found.longest) == (pytest.approx(2.5 * 13 / 4), 40)


def _is_on(pid: int, core: int) -> bool:
    """Whether a process and its only child run there alone."""
    return [os.sched_getaffinity(each) for each in (pid, *descendants(pid))] == [{core}, {core}]
