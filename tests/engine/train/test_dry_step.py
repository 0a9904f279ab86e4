"""A step of ranks of the published layouts on fake tensors: it runs, and holds what `cascade plan` says.

Frozen gates have no gradient, which the plan does not know: 0.2 % of the gradients.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from cascade_rl.engine.core.settings import Recomputed
from cascade_rl.engine.models import read_config
from cascade_rl.engine.train.dry_step import DryStep
from cascade_rl.launchers.cli.dry_step import STATE, step_of, trainer_rank
from cascade_rl.launchers.plan.activations import kept_bytes, layer_bytes
from cascade_rl.launchers.plan.model import PUBLISHED, Model
from cascade_rl.launchers.plan.trainer_memory import TrainerRank
from tests.gloo import run_ranks

LAUNCHER = Path(__file__).parents[3] / "launchers/cascade2_30b_a3b.py"
CASES = [  # one for each layout
    ("h100", "sft", 0),
    ("h100", "if_rl", 63),
    ("h100", "mopd", 0),
    ("h100", "swe_agentic_rl", 63),
    ("b200", "sft", 63),
    ("b200", "if_rl", 0),
    ("b200", "mopd", 63),
    ("b200", "swe_agentic_rl", 0),
]


def stepped(rank: TrainerRank, architecture: str) -> DryStep:
    """In a process of its own: tests/engine/train/on_fake_card.py says why."""
    return run_ranks(1, step_of, rank, architecture)[0]


def rank_of(stage: str, hardware: str, number: int, layers: str | None = None, nproc: int | None = None) -> TrainerRank:
    settings = [f"{stage}.nproc={nproc}"] if nproc else []
    rank = trainer_rank(LAUNCHER, stage, hardware, number, settings)
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
    assert found.peak == pytest.approx(kept + training["head"] + training["backward"], rel=0.1)
    assert not found.without_gradient


@pytest.mark.slow
def test_a_rank_of_512_with_a_layer_of_each_kind() -> None:
    rank = rank_of("if_rl", "h100", 333, "ME*E", nproc=512)
    check(found := stepped(rank, "sm90"), rank)
    more = rank_of("if_rl", "h100", 333, "MME*E", nproc=512)
    layer = layer_bytes(more.model, "M", more.parallel) * more.tokens
    assert stepped(more, "sm90").forward - found.forward == pytest.approx(layer, rel=0.01)


@pytest.mark.long
def test_a_rank_with_gated_delta_nets() -> None:
    """Of Qwen3-Next, in the same layout: four decoder layers, of which the last has attention, then two more."""
    # of four layers with 512 experts each, frozen gates without gradients would be noticed
    rank = trainer_rank(LAUNCHER, "if_rl", "h100", 333, ["if_rl.nproc=512", "if_rl.router.trained=true"])
    published = read_config(PUBLISHED / "qwen3_next_80b_a3b")
    found = []
    for layers in (4, 6):
        model = Model(published | {"num_hidden_layers": layers, "full_attention_interval": 4}, "")
        own = replace(rank, model=model)
        found.append(stepped(own, "sm90"))
        check(found[-1], own)
    added = sum(2 * layer_bytes(own.model, symbol, own.parallel) * own.tokens for symbol in "GE")
    assert found[1].forward - found[0].forward == pytest.approx(added, rel=0.05)


@pytest.mark.long
@pytest.mark.parametrize("recompute", [("full",), ("core_attn", "moe"), ("layernorm", "moe_act", "shared_experts")])
def test_what_is_computed_again_is_not_kept(recompute: tuple[Recomputed, ...]) -> None:
    rank = rank_of("if_rl", "h100", 77, "ME*E")
    parallel = replace(rank.parallel, recompute=recompute)
    again = replace(rank, layout=replace(rank.layout, parallel=parallel))
    found = stepped(again, "sm90")
    saved = sum(layer_bytes(rank.model, s, parallel) - kept_bytes(rank.model, s, parallel) for s in rank.model.pattern)
    assert stepped(rank, "sm90").forward - found.forward == pytest.approx(saved * rank.tokens, rel=0.05)
    assert not found.without_gradient


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 127])
@pytest.mark.parametrize(("chunks", "more"), [(1, 0.05), (3, 0.35)])
def test_ranks_of_a_pipeline_hold_their_micro_batches_in_flight(number: int, chunks: int, more: float) -> None:
    """And the outputs of their stages, which the plan does not count."""
    rank = rank_of("if_rl", "h100", number, "MEME*E")
    parallel = replace(rank.parallel, pipeline=2, virtual_pipeline=chunks)
    rank = replace(rank, layout=replace(rank.layout, parallel=parallel))
    training, found = rank.training(), stepped(rank, "sm90")
    planned = sum(training[name] for name in ("activations", "head", "backward", "batch"))
    assert 0.85 * planned < found.peak < (1 + more) * planned
    assert not found.without_gradient


@pytest.mark.long
@pytest.mark.parametrize(("hardware", "stage", "number"), CASES)
def test_a_rank_of_every_layout_of_the_30b_launcher(hardware: str, stage: str, number: int) -> None:
    rank = rank_of(stage, hardware, number)
    check(stepped(rank, {"h100": "sm90", "b200": "sm100"}[hardware]), rank)
