"""BFCL's own checker of multi-turn rows beside our verdicts, on a stand-in for the package."""

from pathlib import Path

import pytest

from cascade_rl.launchers.verify.published import bfcl_services
from cascade_rl.launchers.verify.published.upstream.bfcl_states import CHECKER
from tests.launchers.verify.published.test_command import write

CALLS = {"parameters": {"type": "dict", "properties": {"a": {}}}}
# A row is right if every turn has its calls, in whatever order.
CHECKS = """
def multi_turn_checker(steps, truth, row, category, model):
    return {"valid": all(sorted(turn) == sorted(calls) for (turn,), calls in zip(steps, truth, strict=True))}
"""


@pytest.mark.process
def test_the_score_is_what_bfcl_says_of_the_whole_row(tmp_path: Path) -> None:
    data = tmp_path / "bfcl_eval" / "data"
    question = [[{"role": "user", "content": text}] for text in ("Do.", "Wait.")]
    write(data / f"BFCL_v4_{bfcl_services.SET}.json", [{"id": "r", "question": question}])
    truth = [["f(a=1)", "g(a='x')"], []]
    write(data / "possible_answer" / f"BFCL_v4_{bfcl_services.SET}.json", [{"id": "r", "ground_truth": truth}])
    write(data / "multi_turn_func_doc" / "all.json", [{"name": name, **CALLS} for name in "fg"])
    checker = tmp_path.joinpath(*CHECKER.split(".")).with_suffix(".py")
    checker.parent.mkdir(parents=True)
    checker.write_text(CHECKS)
    found = {case.group.partition(", states ")[2]: case.score for case in bfcl_services.cases(tmp_path)}
    assert found == {
        "as expected": 1.0,
        "in reverse": 1.0,
        "without a call": 0.0,
        "with another name": 0.0,
        "with another value": 0.0,
    }
