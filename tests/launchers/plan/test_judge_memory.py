"""A Bradley-Terry model is whole on each GPU while it scores, and in host memory while the trainer works."""

from dataclasses import replace
from pathlib import Path

import pytest

from cascade_rl.launchers.plan import command
from cascade_rl.launchers.plan.hardware import GIB, read_hardware
from cascade_rl.launchers.plan.model import model_of
from cascade_rl.launchers.plan.stage_plan import Setting, StagePlan, plan_stage
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.reward_model import RewardModel

LAUNCHERS = Path(__file__).parents[3] / "launchers"
GPU, ASSUMED = read_hardware("h100")
SERVED = RewardModel(kind="bradley_terry", model="rm-72b", url="http://rm:8000")


def planned(reward_model: RewardModel | None) -> StagePlan:
    cascade = replace(command.load_cascade(LAUNCHERS / "cascade1_14b.py"), hardware="h100")
    stage = cascade.stage("rlhf")
    assert isinstance(stage, GrpoStage)
    changed = replace(stage, reward_model=reward_model or stage.reward_model)
    model, layout = model_of(cascade.base), cascade.layout(stage)
    return plan_stage(Setting(model, changed, layout, cascade.evaluation, GPU, ASSUMED))


def test_it_is_on_the_gpu_beside_the_engines_only() -> None:
    own, served = planned(None), planned(SERVED)
    terms = {phase.name: phase.memory for phase in own.phases}
    assert terms["engine"]["reward model"] / GIB == pytest.approx(27.5, abs=0.1)  # 14.77 B numbers of 2 bytes
    assert all("reward model" not in terms[name] for name in ("log-prob", "train", "refit"))
    assert (own.host_bytes_per_node - served.host_bytes_per_node) / GIB == pytest.approx(8 * 27.5, abs=1)
    assert not any(name.startswith("reward model") for phase in served.phases for name in phase.memory)
