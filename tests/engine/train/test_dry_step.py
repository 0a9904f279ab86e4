"""A step of ranks of the published layouts on fake tensors: it runs, and holds what `cascade plan` says.

Frozen gates have no gradient, which the plan does not know: 0.2 % of the gradients.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from cascade_rl.engine.train.dry_step import DryStep
from cascade_rl.launchers.cli.dry_step import STATE, step_of, trainer_rank
from cascade_rl.launchers.plan.model import Model
from cascade_rl.launchers.plan.trainer_memory import TrainerRank

LAUNCHERS = Path(__file__).parents[3] / "launchers"
NANO = "cascade2_30b_a3b"
CASES = {
    "h100": ("sft", "if_rl", "mopd", "swe_agentic_rl"),  # one for each layout
    "b200": ("sft", "if_rl", "mopd", "swe_agentic_rl"),
}


def rank_of(stage: str, hardware: str, number: int, layers: str | None = None, launcher: str = NANO) -> TrainerRank:
    rank = trainer_rank(LAUNCHERS / f"{launcher}.py", stage, hardware, number)
    if layers is None:
        return rank
    shorter = {"hybrid_override_pattern": layers, "num_hidden_layers": len(layers)}
    return replace(rank, model=Model(rank.model.hf | shorter, ""))


def check(found: DryStep, rank: TrainerRank) -> None:
    held = rank.resident()
    for name in STATE:
        assert getattr(found, name) == pytest.approx(held[name], rel=5e-3), name
    training = rank.training()
    kept = training["activations"] + training["batch"]
    assert 0.9 * kept < found.forward < kept + training["head"]  # the head's term has its backward too


@pytest.mark.slow
def test_a_rank_of_128_with_a_layer_of_each_kind() -> None:
    rank = rank_of("if_rl", "h100", 77, "ME*E")
    check(step_of(rank, "sm90"), rank)


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 63])
@pytest.mark.parametrize(("hardware", "stage"), [(card, stage) for card, stages in CASES.items() for stage in stages])
def test_a_rank_of_every_layout_of_the_30b_launcher(hardware: str, stage: str, number: int) -> None:
    rank = rank_of(stage, hardware, number)
    check(step_of(rank, {"h100": "sm90", "b200": "sm100"}[hardware]), rank)
