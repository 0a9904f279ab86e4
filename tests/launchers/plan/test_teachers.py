"""What the plan counts of teachers: the student's own model or another one, on the card, on the host and in FLOPs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import ParallelConfig, RolloutConfig
from cascade_rl.engine.models import read_config
from cascade_rl.launchers.plan.hardware import read_hardware
from cascade_rl.launchers.plan.model import PUBLISHED, Model, teachers_of
from cascade_rl.launchers.plan.stage_plan import Setting, StagePlan, plan_stage
from cascade_rl.rl_stages.config.base import Evaluation
from cascade_rl.rl_stages.config.cascade import Layout
from cascade_rl.rl_stages.config.mopd_stage import MopdStage

GPU, ASSUMED = read_hardware("h100")
STUDENT, BIGGER = (Model(read_config(PUBLISHED / name), "") for name in ("qwen3_8b", "qwen3_14b"))
LAYOUT = Layout(
    nproc=8,
    parallel=ParallelConfig(tensor=4, sequence=True, precision="bfloat16"),
    rollout=RolloutConfig(engines=4, tensor=2, max_model_len=9_000, kv_cache_mib=8_192, dtype="bfloat16", sleep=True),
)


def folder_of(model: Model, folder: Path) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(model.hf))
    return str(folder)


def planned(
    teachers: dict[str, str], objective: str = "sampled", model: Model = STUDENT, layout: Layout = LAYOUT
) -> StagePlan:
    stage = MopdStage(
        name="mopd", domain="general", data=("generate:math", "generate:mcqa"), teachers=teachers, steps=10,
        token_budget=9_000, sampling=Sampling(max_new_tokens=8_000), objective=objective,  # type: ignore[arg-type]
    )  # fmt: skip
    evaluation = Evaluation(domains=tuple(teachers), prompts_per_domain=8, max_new_tokens=1024)
    return plan_stage(Setting(model, stage, layout, evaluation, GPU, ASSUMED, teachers_of(stage, model)))


def terms(plan: StagePlan, phase: str) -> dict[str, float]:
    (found,) = [dict(each.memory) for each in plan.phases if each.name == phase]
    return found


def seconds(plan: StagePlan, phase: str) -> float:
    (found,) = [each.seconds for each in plan.phases if each.name == phase]
    return found


def test_a_bigger_teacher_is_on_the_card_while_it_computes_and_has_its_own_flops(tmp_path: Path) -> None:
    bigger, same = folder_of(BIGGER, tmp_path / "bigger"), folder_of(STUDENT, tmp_path / "same")
    alone, both, own = planned({"math": bigger}), planned({"math": bigger, "mcqa": same}), planned({"math": same})
    for phase in ("engine", "train", "teachers"):
        assert terms(alone, phase)["copy"] == 0
        assert terms(both, phase)["copy"] == terms(own, phase)["copy"] == terms(own, phase)["weights"]
        assert ("teacher" in terms(both, phase)) == (phase == "teachers")
    shard = 2 * BIGGER.parameters / LAYOUT.parallel.tensor
    assert terms(alone, "teachers")["teacher"] == pytest.approx(shard, rel=0.02)  # padding, and norms, which are whole
    assert alone.host_bytes_per_node - own.host_bytes_per_node == pytest.approx(
        8 * (shard - terms(own, "train")["weights"]), rel=0.02
    )
    read, read_bigger = (2 * model.parameters / (1e9 * ASSUMED.read_gb_s) for model in (STUDENT, BIGGER))
    of_own, of_bigger = seconds(own, "teachers") - read, seconds(alone, "teachers") - read_bigger
    length = min(ASSUMED.prompt_tokens, 1_000) + round(ASSUMED.answer_share * 8_000)
    flops = [model.cost.of([length])[0] for model in (STUDENT, BIGGER)]
    assert of_bigger / of_own == pytest.approx(flops[1] / flops[0], rel=1e-6)
    assert seconds(both, "teachers") == pytest.approx(read + read_bigger + (of_own + of_bigger) / 2, rel=1e-6)


def test_an_exact_divergence_keeps_heads_and_states(tmp_path: Path) -> None:
    bigger = folder_of(BIGGER, tmp_path / "bigger")
    sampled, exact = (planned({"math": bigger, "mcqa": bigger}, objective) for objective in ("sampled", "exact"))
    rows = STUDENT.vocabulary / LAYOUT.parallel.tensor
    assert terms(exact, "train")["heads"] - terms(sampled, "train")["heads"] == 2 * rows * BIGGER.hidden
    states = 4 * BIGGER.hidden
    assert terms(exact, "train")["batch"] - terms(sampled, "train")["batch"] == states * 9_000
    assert exact.host_bytes_per_node > sampled.host_bytes_per_node + states * 128 * 4 * 8_000


def test_a_teacher_that_cannot_compute_here_is_a_problem(tmp_path: Path) -> None:
    uneven = Model(BIGGER.hf | {"num_attention_heads": 42, "num_key_value_heads": 6}, "")
    (problem,) = planned({"math": folder_of(uneven, tmp_path / "uneven")}).problems
    assert problem.startswith(f"mopd.teachers, {tmp_path / 'uneven'}: expected a teacher that the trainer can")
    few = Model(BIGGER.hf | {"vocab_size": 1000}, "")
    with pytest.raises(UserError, match=r"mopd\.teachers\.math: expected a teacher with all 151936 ids"):
        planned({"math": folder_of(few, tmp_path / "few")})
    with pytest.raises(UserError, match="no such file"):
        planned({"math": str(tmp_path / "gone")})


def test_a_teacher_without_experts_is_whole_on_the_ranks_that_share_them(tmp_path: Path) -> None:
    experts = Model(read_config(PUBLISHED / "qwen3_30b_a3b"), "")
    layout = replace(LAYOUT, parallel=replace(LAYOUT.parallel, expert=8))
    plan = planned({"math": folder_of(BIGGER, tmp_path / "dense")}, model=experts, layout=layout)
    assert terms(plan, "teachers")["teacher"] == pytest.approx(2 * BIGGER.parameters / 4, rel=0.02)


def test_each_best_may_be_another_teacher() -> None:
    once, twice = planned({"math": "sft", "mcqa": "sft"}), planned({"math": "best", "mcqa": "best"})
    assert twice.host_bytes_per_node - once.host_bytes_per_node == 8 * terms(once, "train")["weights"]
    reading = 2 * STUDENT.parameters / (1e9 * ASSUMED.read_gb_s)
    assert seconds(twice, "teachers") - seconds(once, "teachers") == pytest.approx(reading)
    assert replace(twice, host_bytes_per_node=0).fits(GPU.capacity)
