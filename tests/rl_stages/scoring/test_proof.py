"""Graders that prove themselves on each node, in each tier, and what is said of those that cannot."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.cluster.node import ThisNode
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from cascade_rl.rl_stages.lessons import code, swe_agent, swe_executed
from cascade_rl.rl_stages.rewards.swe import exemplars, grading
from cascade_rl.rl_stages.rewards.verifiers.programs.code_rows import SpecialJudge
from cascade_rl.rl_stages.sandbox import Sandbox, SandboxFailure, Tier
from cascade_rl.rl_stages.scoring.episodes import Episodes
from cascade_rl.rl_stages.scoring.judge import Judge
from cascade_rl.rl_stages.scoring.proof import Place, Proof, Prover
from cascade_rl.rl_stages.tasks.domains import DOMAINS
from cascade_rl.rl_stages.tasks.load_tasks import parse_task, read_tasks
from cascade_rl.rl_stages.tasks.row_form import ANY

TOKENIZER = train_tokenizer([[{"role": "user", "content": "x"}]])
EXECUTED = [name for name, domain in DOMAINS.items() if domain.exemplars]
LESSONS = {"code": code.lessons, "swe_executed": swe_executed.lessons, "swe_agentic": swe_agent.lessons}

pytestmark = pytest.mark.sandbox


class SecondNode(ThisNode):
    host = "second"


def prove(domain: str, *sources: str, tier: Tier = Tier.LANDLOCK, others: Any = ()) -> list[Proof]:
    places = [Place(node, tier) for node in (ThisNode(), *others)]
    with Judge(TOKENIZER, others=others) as judge, Episodes(TOKENIZER, others) as episodes:
        return Prover(judge, episodes, places).prove(domain, dict.fromkeys(sources, ANY))


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Any]:
    """Writes rows of a domain to a file and returns its path. Of the first `bad` the golden patch repairs nothing."""

    def write(domain: str, count: int, bad: int) -> str:
        made = [lesson.row(domain) for lesson, _ in zip(LESSONS[domain](), range(count), strict=False)]
        for row in made[:bad]:
            row["gold_patch"] = "\n".join(
                f"{line}1" if line.startswith("+ ") else line for line in row["gold_patch"].split("\n")
            )
        path = tmp_path / f"{domain}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in made))
        return str(path)

    yield write


def test_every_domain_that_runs_code_has_known_answers() -> None:
    assert EXECUTED == ["code", "math_python", "swe_executed", "swe_agentic"]


@pytest.mark.parametrize("domain", EXECUTED)
def test_a_grader_that_works_proves_itself_with_the_first_row(domain: str, tier: Tier) -> None:
    (proof,) = prove(domain, f"generate:{domain}", tier=tier)
    assert proof.holds and len(proof.trials) == 1, proof.refusal()
    assert {"math_python": "found none"}.get(domain, "wrong") in proof.trials[0].empty.detail  # it was run


def test_each_node_proves_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    make = Sandbox.folder

    def folder(self: Sandbox, *given: Any) -> Any:
        made = make(self, *given)
        used.append(made.node.host)
        return made

    monkeypatch.setattr(Sandbox, "folder", folder)
    proofs = prove("swe_executed", "generate:swe_executed", others=[SecondNode()])
    assert [proof.place.node.host for proof in proofs] == [ThisNode().host, "second"]
    assert all(proof.holds for proof in proofs)
    # golden, empty, and the golden patch once more, since the empty one was wrong (rewards/swe/exam.py)
    assert sorted(used) == sorted([ThisNode().host, "second"] * 3)


def test_of_three_instances_one_is_enough(rows: Any) -> None:
    (proof,) = prove("swe_executed", rows("swe_executed", count=4, bad=2))
    assert proof.holds and [trial.proves for trial in proof.trials] == [False, False, True]


def test_three_golden_patches_that_fail_refuse_the_grader_and_all_is_named(rows: Any) -> None:
    (proof,) = prove("swe_agentic", rows("swe_agentic", count=4, bad=3))
    assert not proof.holds and len(proof.trials) == 3
    name, place = next(swe_agent.lessons()).fields["instance_id"], f"node {ThisNode().host} (sandbox tier: landlock)"
    assert proof.refusal().startswith(f"swe_agentic on {place}: expected score 1 for the golden answer")
    assert f"found {name}: golden score 0, wrong: test_apples.py::test_value; empty score 0, " in proof.refusal()
    assert "Run `cascade doctor` on that node" in proof.refusal() and "remove these instances" in proof.refusal()


def test_a_box_that_runs_no_test_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exemplars, "CANDIDATES", 1)
    monkeypatch.setattr(grading, "ENVIRONMENT", {**grading.ENVIRONMENT, "PYTEST_ADDOPTS": "--collect-only"})
    (proof,) = prove("swe_executed", "generate:swe_executed")
    assert not proof.holds
    assert "golden no score, expected outcomes of double-1-a-4's tests" in proof.refusal()


def test_a_sandbox_that_fails_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SandboxFailure("no box")

    monkeypatch.setattr(Sandbox, "folder", fail)
    monkeypatch.setattr(Sandbox, "run_program", fail)
    for domain in EXECUTED:
        (proof,) = prove(domain, f"generate:{domain}")
        assert "golden no score, no box; empty no score, no box" in proof.refusal()


def test_programs_are_proven_in_the_languages_of_the_rows() -> None:
    task = next(read_tasks("generate:code"))
    problem = task.metadata["problem"]
    make = DOMAINS["code"].exemplars
    assert make

    def names(*problems: Any) -> list[str]:
        tasks = [replace(task, metadata={"problem": found}) for found in problems]
        return [one.name for (one,) in make(tasks)]

    cpp = replace(problem, language="cpp", mode="stdin")
    judged = replace(problem, checker=SpecialJudge("cpp", "int main() {}"))
    assert names(problem) == ["sum in python"]
    assert names(problem, cpp) == names(judged) == ["sum in cpp", "sum in python"]


def test_cpp_without_a_compiler_is_no_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = next(code.lessons()).row("code")
    row["verifier_metadata"]["language"] = "cpp"
    (tmp_path / "cpp.jsonl").write_text(json.dumps(row) + "\n")
    (proof,) = prove("code", str(tmp_path / "cpp.jsonl"))
    assert proof.holds, proof.refusal()
    monkeypatch.setenv("PATH", "/nowhere")
    (proof,) = prove("code", str(tmp_path / "cpp.jsonl"))
    assert "golden no score, C++ programs need g++" in proof.refusal()


def test_a_domain_without_rows_is_not_proven(rows: Any) -> None:
    assert prove("swe_executed", rows("code", count=2, bad=0)) == []


def test_a_golden_patch_without_context_is_found_by_the_lines_around_it() -> None:
    row = next(swe_executed.lessons()).row("swe_executed")
    kept = [line for line in row["gold_patch"].splitlines() if not line.startswith(" ")]
    row["gold_patch"] = "\n".join("@@ -2 +2 @@" if line.startswith("@@") else line for line in kept) + "\n"
    task = parse_task(row, "row", "t")
    make = DOMAINS["swe_executed"].exemplars
    assert make
    ((one,),) = make([task])
    assert "def double(a):" in one.golden[0] and "# nothing is repaired" in one.empty[0]
