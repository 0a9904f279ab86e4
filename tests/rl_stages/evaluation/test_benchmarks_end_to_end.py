"""A stage on the real stack measures a suite before and after itself, in both modes."""

import json
from pathlib import Path

import pytest

from cascade_rl.launchers.report import page
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.sample_record import read_samples
from tests.rl_stages.launched import Launched

PROMPTS, ANSWERS = 5, 2
LAUNCHER = """
from dataclasses import replace
from runpy import run_path

from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.benchmark_suite import BenchmarkSuite

whole = run_path({tiny!r})["CASCADE"]
suite = BenchmarkSuite(suite="own.toml", folder=".", thinking="both", answers={{"sums": {answers}}})
stages = tuple(replace(whole.stage("math_rl"), name=name, steps=1) for name in ("first", "second"))
base = replace(whole.base, chat_template="cascade1")
evaluation = replace(whole.evaluation, suites=(suite,), prompts_per_domain=4)
rollout = replace(whole.rollout, max_model_len=256)
launch(replace(whole, base=base, stages=stages, evaluation=evaluation, rollout=rollout))
"""
SUITE = """
[sums]
rows = "sums.jsonl"
answers = 8
max_new_tokens = 24
temperature = 1.0
top_p = 0.95
thinking = "on"
"""


@pytest.mark.engine
@pytest.mark.ranks
@pytest.mark.long
def test_stages_measure_the_suites_and_the_report_has_their_numbers(tmp_path: Path) -> None:
    rows = [{"problem": f"What is {n} + 1?", "answer": n + 1} for n in range(PROMPTS)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.toml").write_text(SUITE)
    launcher = tmp_path / "own.py"
    launcher.write_text(LAUNCHER.format(tiny=str(Path(__file__).parents[1] / "tiny_cascade.py"), answers=ANSWERS))
    code, out, err = Launched(tmp_path, launcher).finish()
    assert code == 0, out + err
    run = RunFolder.open(tmp_path / "runs/tiny")
    first, second = (stage.benchmarks() for stage in run.stages)
    assert first["after"] == second["before"]
    assert [row["model"] for row in first["before"]["results"]] == ["base", "base"]
    for found in (first["before"], first["after"], second["after"]):
        assert [(row["mode"], row["prompts"]) for row in found["results"]] == [("off", PROMPTS), ("on", PROMPTS)]
        assert found["differences"][0]["half"] is not None
    answers = read_samples(run.stages[0].benchmark_answers("after", "sums"))
    assert len(answers) == 2 * PROMPTS * ANSWERS and {row["thinking"] for row in answers} == {True, False}
    assert "after: sums: avg@2 " in out
    page.run(run.root, None, 1000)
    assert (run.root / "report.html").stat().st_size > 0
