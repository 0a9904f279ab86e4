"""Rows and rollouts that others published, as `make test-published` lays them out; too many for this repository."""

import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.verifiers.instructions import instruction_following
from cascade_rl.rl_stages.rewards.verifiers.programs import code_rows
from cascade_rl.rl_stages.rewards.verifiers.programs.code import CodeVerifier
from tests.rl_stages.rewards.verifiers.golden import rescore

PLACE = "CASCADE_PUBLISHED"
pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(PLACE not in os.environ, reason=f"{PLACE} is not set: `make test-published` does it"),
]


def rows(pattern: str) -> list[dict]:
    (path,) = Path(os.environ[PLACE]).rglob(pattern)
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def test_of_human_eval_all_solutions_pass_and_no_stub_does():
    problems = rows("HumanEval.jsonl.gz")
    with closing(CodeVerifier(slots=2)) as verifier, ThreadPoolExecutor(2) as threads:

        def scores(problem: dict) -> tuple[float | None, float | None]:
            task = Task("t", "code", (), code_rows.parse_row(problem))
            bodies = problem["canonical_solution"], "    return None\n"
            solution, stub = (verifier(task, f"```python\n{body}\n```").score for body in bodies)
            return solution, stub

        found = list(threads.map(scores, problems))
    assert found == [(1.0, 0.0)] * 164


def test_all_rows_of_ifbench_load():
    loaded = [instruction_following.parse_row(row) for row in rows("IFBench_test.jsonl")]
    assert len(loaded) == 294


def test_the_rollouts_of_nemo_gym_have_the_scores_of_the_table():
    """With all that test_golden.py says of the differences to Gym's own. Whether one is decided in time may vary."""

    def scores(rows: list[dict]) -> list[tuple]:
        return [
            (row["server"], row["rollout"], row["gym"], row["ours"] if "undecided" not in row["detail"] else None)
            for row in rows
            if row["server"] != "reasoning_gym" or find_spec("reasoning_gym")
        ]

    found = list(rescore.rescored(Path(os.environ[PLACE])))
    assert scores(found) == scores(json.loads(rescore.REWARDS.read_text()))
