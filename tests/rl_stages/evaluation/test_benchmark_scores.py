"""Benchmarks of a cascade: numbers of several answers in both modes, and what a launch refuses."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Rollout, Sampling
from cascade_rl.rl_stages.benchmarks.of_cascade import check_benchmarks
from cascade_rl.rl_stages.benchmarks.results import flat, in_words, plain
from cascade_rl.rl_stages.config.benchmark_suite import BenchmarkSuite
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.evaluation.benchmark_scores import benchmark_scores
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.sample_record import read_samples
from cascade_rl.rl_stages.scoring.infrastructure import InfrastructureFailures
from cascade_rl.rl_stages.tasks.prompt_stream import any_length
from tests.rl_stages.tiny_cascade import CASCADE

PROMPTS = 4
TABLE = 'rows = "sums"\nanswers = 3\nmax_new_tokens = 24\ntemperature = 0.5\ntop_p = 0.9\nthinking = "both"\n'


def cascade(folder: Path, table: str = f"[sums]\n{TABLE}", **asked: Any) -> Cascade:
    (folder / "sums.jsonl").write_text(
        "".join(json.dumps({"problem": f"What is {n}?", "answer": n}) + "\n" for n in range(PROMPTS))
    )
    (folder / "own.toml").write_text(table.replace('"sums"', '"sums.jsonl"'))
    suite = BenchmarkSuite(suite=str(folder / "own.toml"), folder=str(folder), **asked)
    return replace(CASCADE, evaluation=replace(CASCADE.evaluation, suites=(suite,), max_infrastructure_failures=0.2))


class Session:
    """Of one rank, which the model answers: wrong in instruct mode, except for the last prompt."""

    def __init__(self, cascade: Cascade, stage: StageFolder, broken: int = 0) -> None:
        self.cascade, self.broken = cascade, broken
        self.zero: Any = SimpleNamespace(judge=self.judge, folder=stage)
        self.asked: list[tuple[str, int, int, Sampling]] = []

    def prompt_room(self, *_: object) -> Any:
        return SimpleNamespace(admits=any_length)

    def draw_all(self, batches: Any, group: int, sampling: Sampling, *, heldout: bool) -> dict[str, Any]:
        assert heldout
        self.asked += [(label, len(tasks), group, sampling) for label, tasks in batches.items()]
        return {
            label: [[answer(f"{label}/{task.id}/{i}") for i in range(group)] for task in tasks]
            for label, tasks in batches.items()
        }

    def judge(self, tasks: Sequence[Task], groups: Sequence[Sequence[Rollout]]) -> list[list[tuple[str, Verdict]]]:
        return [[self.verdict(task) for _ in group] for task, group in zip(tasks, groups, strict=True)]

    def verdict(self, task: Task) -> tuple[str, Verdict]:
        number = int(task.id[-6:])
        if number < self.broken:
            return "", Verdict.infrastructure_failure("disk full")
        right = bool(task.thinking) or number == PROMPTS - 1
        return rf"\boxed{{{number if right else 77}}}", Verdict.scored(float(right))

    def on_rank0(self, produce: Any, told: Any = None) -> Any:
        return produce(self.zero)


def answer(name: str) -> Rollout:
    return Rollout(name, np.array([1, 2]), np.array([3, 4]), np.float32([-1, -0.5]), None, ((2, 0),), "stop")


@pytest.fixture
def stage(tmp_path: Path) -> StageFolder:
    with RunFolder.claim(tmp_path / "tiny", CASCADE) as (run, _):
        return run.stage("math_rl")


def test_the_gap_between_the_modes_is_a_number_with_an_interval(tmp_path: Path, stage: StageFolder) -> None:
    session = Session(cascade(tmp_path, answers={"sums": 2}), stage)
    found = plain(benchmark_scores(session, "math_rl", "after"))
    sampling = Sampling(24, 0.5, 0.9, max_total_tokens=128)
    assert session.asked == [(f"benchmark-sums-{mode}", PROMPTS, 2, sampling) for mode in ("on", "off")]
    off, on = found["results"]
    assert (off["benchmark"], off["model"], off["mode"], off["prompts"]) == ("sums", "math_rl", "off", PROMPTS)
    assert (off["avg@2"]["mean"], on["avg@2"]["mean"], on["maj@2"]["mean"], on["tokens"]["mean"]) == (0.25, 1, 1, 2)
    [gap] = found["differences"]
    assert gap["compared"] == "math_rl, thinking on - math_rl, thinking off"
    assert (gap["mean"], gap["half"]) == (0.75, pytest.approx(1.96 * 0.5 / 2))
    assert list(in_words(found))[-1] == f"sums: {gap['compared']}: 0.750 ± 0.490"
    told = flat(found)
    assert (told["sums/on/avg_at_2"], told["sums/difference"], told["sums/difference/half"]) == (1, 0.75, gap["half"])
    rows = read_samples(stage.benchmark_answers("after", "sums"))
    assert len(rows) == 2 * 2 * PROMPTS and {row["thinking"] for row in rows} == {True, False}


def test_a_prompt_without_a_score_is_in_no_number_and_too_many_end_the_stage(
    tmp_path: Path, stage: StageFolder
) -> None:
    asked = cascade(tmp_path)
    with pytest.raises(InfrastructureFailures, match=r"sums: 6 of 24 answers could not be scored.*disk full"):
        benchmark_scores(Session(asked, stage, broken=1), "base", "before")
    patient = replace(asked, evaluation=replace(asked.evaluation, max_infrastructure_failures=0.25))
    off, _ = plain(benchmark_scores(Session(patient, stage, broken=1), "base", "before"))["results"]
    assert (off["prompts"], off["avg@3"]["mean"]) == (PROMPTS - 1, pytest.approx(1 / 3))


@pytest.mark.parametrize(
    ("table", "asked", "message"),
    [
        (f"[sums]\n{TABLE}", {}, ""),
        (f"[sums]\n{TABLE}", {"max_new_tokens": 128}, "sums: expected answers of less than 128 tokens"),
        (f'[sums]\n{TABLE}method = "vote"\n', {}, "found the method vote: play it with `cascade eval`"),
        (f"[sums]\n{TABLE}", {"only": ("products",)}, r"expected benchmarks of it \(sums\); found 'products'"),
    ],
)
def test_a_launch_refuses_what_the_stages_cannot_measure(
    tmp_path: Path, table: str, asked: dict[str, Any], message: str
) -> None:
    config = cascade(tmp_path, table, **asked)
    if not message:
        return check_benchmarks(config)
    with pytest.raises(UserError, match=message):
        check_benchmarks(config)


def test_two_suites_may_not_have_a_benchmark_of_the_same_name(tmp_path: Path) -> None:
    config = cascade(tmp_path)
    twice = replace(config.evaluation, suites=config.evaluation.suites * 2)
    with pytest.raises(UserError, match="sums: expected one benchmark of that name; found a second"):
        check_benchmarks(replace(config, evaluation=twice))
