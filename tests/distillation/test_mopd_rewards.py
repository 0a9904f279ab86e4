"""MOPD needs no reward: prompts that only a reward model can judge are learned from, and are no failures."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cascade_rl.distillation import mopd
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.sample_record import read_samples
from cascade_rl.rl_stages.scoring.infrastructure import InfrastructureFailures
from tests.gloo import run_ranks
from tests.rl_stages.test_scripted_engine import ScriptedSession, cascade, row


def rlhf_row(prompt: str) -> dict:
    """As in `data/cascade2/rlhf`: what a judge should look for, and no rules."""
    return row(prompt) | {"agent_ref": {"name": "genrm_simple_agent"}, "principle": "Be kind."}


def mixed(root: Path, measured: tuple[str, ...], unmeasured: tuple[str, ...]) -> Cascade:
    """Half of the prompts are of RLHF. Both teachers are the student's own first weights."""
    tree = cascade(root)
    (rows,) = tree.stages[0].data
    other = root / "rlhf.jsonl"
    other.write_text("".join(json.dumps(rlhf_row(f"Greet guest {n}.")) + "\n" for n in range(60)))
    grpo = tree.stages[0]
    stage = MopdStage(
        name="rl",
        domain="general",
        data=(f"{rows}*0.5", f"{other}*0.5"),
        teachers=dict.fromkeys(("math", "rlhf"), str(root / "run/base")),
        steps=2,
        prompts_per_step=8,
        rollouts_per_prompt=2,
        token_budget=512,
        sampling=grpo.sampling,  # type: ignore[attr-defined]
        tme_bound=1e9,
    )
    return replace(tree, stages=(stage,), evaluation=replace(tree.evaluation, domains=measured, unmeasured=unmeasured))


def distil(run: RunFolder) -> None:
    with ScriptedSession(run, run.stage("rl")) as session:
        mopd.run(session)  # type: ignore[arg-type]


def test_unmeasured_domains_have_no_reward_are_no_failures_and_are_learned_from(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "run", mixed(tmp_path, ("math",), ("rlhf",))) as (run, _):
        run_ranks(1, distil, run)
        stage = run.stage("rl")
        for metrics in stage.metrics.rows():
            samples = read_samples(stage.rollouts(metrics["step"]))
            unjudged = [sample for sample in samples if sample["domain"] == "rlhf"]
            assert 0 < len(unjudged) < len(samples) == 16
            assert {sample["reward"] for sample in unjudged} == {None}
            assert all(any(sample["loss_mask"]) for sample in unjudged)
            assert all(np.isfinite(sample["teacher_logprobs"]).all() for sample in unjudged)
            assert metrics["reward"] == 0.5  # of the others: every second one is right
            assert metrics["infrastructure_failure_fraction"] == 0.0
            assert metrics["completed_fraction"] == 1.0
            assert "reverse_kl_rlhf" in metrics


def test_the_student_may_learn_from_answers_of_the_weights_before(tmp_path: Path) -> None:
    tree = mixed(tmp_path, ("math",), ("rlhf",))
    stage = replace(tree.stages[0], steps=3, stale_gap_bound=1e9)  # type: ignore[call-arg]
    ahead = replace(tree.rollout, placement="disaggregated", max_staleness=1)
    with RunFolder.claim(tmp_path / "run", replace(tree, stages=(stage,), rollout=ahead)) as (run, _):
        run_ranks(1, distil, run)
        drawn = [read_samples(run.stage("rl").rollouts(step)) for step in (1, 2, 3)]
        ages = [metrics.get("age") for metrics in run.stage("rl").metrics.rows()]
    assert [{str(sample["versions"]) for sample in samples} for samples in drawn] == [
        {"[[0, 0]]"},
        {"[[0, 0]]"},
        {"[[1, 0]]"},
    ]
    assert ages == [None, 1.0, 1.0]


def test_a_measured_domain_whose_verifier_fails_ends_the_step(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "run", mixed(tmp_path, ("math", "rlhf"), ())) as (run, _):
        with pytest.raises(InfrastructureFailures, match=r"expected 'instruction_id_list' in the row"):
            run_ranks(1, distil, run)
        assert run.stage("rl").metrics.rows() == []
