"""A stage starts only with graders that have proven themselves, and its end says which one has not."""

import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import pytest

from cascade_rl.engine.cluster.node import Node, NodeLost, ThisNode
from cascade_rl.launchers.stage.exit_status import USER_ERROR, exit_status
from cascade_rl.rl_stages.config.base import Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.graders import prove_graders
from cascade_rl.rl_stages.lessons import swe_executed
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.sandbox import Tier
from cascade_rl.rl_stages.sandbox.outside.probe import probe
from cascade_rl.rl_stages.scoring.proof import Place, Proof, Prover, Trial, UnprovenGrader
from cascade_rl.rl_stages.session import Session
from cascade_rl.rl_stages.tasks.stage_domains import executed_domains, sources_of
from tests.gloo import run_ranks
from tests.rl_stages.test_scripted_engine import ScriptedSession, cascade

ROWS = 60


class Ended(NamedTuple):
    code: int
    out: str
    errors: str


def rows(broken: range) -> str:
    """Rows of executed SWE; the golden patches of the `broken` ones return another number than they should."""
    made = [lesson.row("swe_executed") for lesson, _ in zip(swe_executed.lessons(), range(ROWS), strict=False)]
    for number in broken:
        made[number]["gold_patch"] = made[number]["gold_patch"].replace(" * 2\n", " * 99\n")
    return "".join(json.dumps(row) + "\n" for row in made)


def swe_cascade(root: Path, broken: range) -> Cascade:
    (root / "swe.jsonl").write_text(rows(broken))
    math = cascade(root)
    stage = replace(math.stages[0], domain="swe_executed", data=(str(root / "swe.jsonl"),), steps=1)
    evaluation = replace(math.evaluation, domains=("math", "swe_executed"))
    return replace(math, stages=(stage,), evaluation=evaluation)


def started(session: Session[Any]) -> int:
    with session:
        return 0


def start(run: RunFolder) -> Ended:
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as errors:
        code = exit_status("01_rl", lambda: started(ScriptedSession(run, run.stage("rl"))))
    return Ended(code, out.getvalue(), errors.getvalue())


def ended(tmp_path: Path, broken: range) -> Ended:
    with RunFolder.claim(tmp_path / "run", swe_cascade(tmp_path, broken)) as (run, _):
        (found,) = run_ranks(1, start, run)
    return found


@pytest.mark.sandbox
def test_a_stage_whose_golden_patches_score_0_does_not_start_and_says_why(tmp_path: Path) -> None:
    found = ended(tmp_path, range(ROWS))
    assert found.code == USER_ERROR  # final, on a cluster too: nothing is queued again
    for part in (
        f"01_rl: swe_executed on node {ThisNode().host} (sandbox tier: {probe()}): expected score 1 for the golden",
        "found double-1-a-4: golden score 0, wrong: test_f.py::test_12, test_f.py::test_30; empty score 0, wrong: ",
        "| double-1-a-6: golden score 0",
        "Run `cascade doctor` on that node and repair what it reports. Where it reports nothing, the data is at fault",
    ):
        assert part in found.errors
    assert "not proven by double-1-a-4: golden score 0" in found.out


@pytest.mark.sandbox
def test_a_stage_whose_grader_works_starts(tmp_path: Path) -> None:
    found = ended(tmp_path, range(1))
    assert (found.code, found.errors) == (0, "")
    assert f"sandbox for untrusted code: {probe()} (nodes: 1); `cascade doctor` says more" in found.out
    assert "swe_executed on node" in found.out and "not proven by double-1-a-4: golden score 0" in found.out
    assert "graders proven (nodes: 1): swe_executed (double-1-a-6)" in found.out


class Lost(ThisNode):
    def call(self, *_: object) -> NoReturn:
        raise NodeLost("rank 1 is gone")


@pytest.mark.parametrize(("node", "error"), [(ThisNode(), UnprovenGrader), (Lost(), NodeLost)])
def test_a_lost_node_is_no_fault_of_its_grader(
    node: Node, error: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed = Verdict.infrastructure_failure("no worker could be started")
    place = Place(node, Tier.LANDLOCK)
    proof = Proof("code", place, [Trial("sum in python", failed, failed)])
    monkeypatch.setattr(Prover, "prove", lambda *_: [proof])
    whole, zero = swe_cascade(tmp_path, range(0)), SimpleNamespace(judge=None, episodes=None, log=SimpleNamespace())
    zero.log.progress = SimpleNamespace(say=print)
    with pytest.raises(error):
        prove_graders(whole, whole.stages[0], zero, [place])  # type: ignore[arg-type]


def test_graders_of_the_evaluation_and_of_the_stages_own_data_are_proven(tmp_path: Path) -> None:
    rl = replace(cascade(tmp_path).stages[0], domain="code", data=("mine.jsonl[:9]",))
    other = replace(rl, name="other", domain="code", data=("theirs.jsonl", "mine.jsonl"))
    sft = SftStage(name="sft", domain="general", data=("generate:math",), steps=1, token_budget=64)
    measured = Evaluation(domains=("math", "swe_executed", "code"), prompts_per_domain=1, max_new_tokens=8)
    whole = replace(cascade(tmp_path), stages=(sft, rl, other), evaluation=measured)
    assert executed_domains(whole, [sft]) == ["swe_executed", "code"]
    assert executed_domains(
        replace(whole, evaluation=replace(measured, domains=("math",), unmeasured=("code",))), [rl]
    ) == ["code"]
    assert list(sources_of("code", [other, *whole.stages])) == ["theirs.jsonl", "mine.jsonl"]
    assert list(sources_of("swe_executed", whole.stages)) == ["generate:swe_executed"]
