"""Ranks of 512-rank layouts on this CPU: Megatron's own modules have the shapes that the name map plans with."""

from math import prod
from pathlib import Path

import pytest
import torch

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import family_of, read_config
from cascade_rl.engine.models.build import place_of_this_rank
from cascade_rl.engine.models.dry_run import imagined_rank, meta_chunks
from cascade_rl.engine.models.memory import state_bytes
from cascade_rl.engine.models.places import place_of

PUBLISHED = Path(__file__).parents[3] / "engine/models/published"
WORLD = 512
NANO, QWEN = "nemotron_3_nano_30b_a3b", "qwen3_30b_a3b"
LAYOUTS = {
    "recipe": ParallelConfig(tensor=2, pipeline=2, context=4, expert=8, sequence=True),
    "TP8 EP32 ETP2": ParallelConfig(tensor=8, expert=32, expert_tensor=2, sequence=True),
    "PP4 VP2 EP64": ParallelConfig(pipeline=4, virtual_pipeline=2, expert=64),
}
RANKS = (0, 77, 300, 511)
NOT_WEIGHTS = {"local_tokens_per_expert", "inv_freq", "cos_cached", "sin_cached"}


@pytest.mark.slow
@pytest.mark.parametrize("model", [NANO, QWEN, pytest.param("deepseek_v3", marks=pytest.mark.long)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_megatron_builds_what_the_name_map_says(model: str, layout: str) -> None:
    """Places, names, shapes, and the number of parameters, of four ranks; nothing is allocated."""
    hf, parallel = read_config(PUBLISHED / model), LAYOUTS[layout]
    for rank in RANKS:
        with imagined_rank(rank, WORLD, parallel):
            place, chunks = place_of_this_rank(), meta_chunks(hf, parallel)
        assert place == place_of(rank, WORLD, parallel)
        prefixes = [f"{number}." if len(chunks) > 1 else "" for number in range(len(chunks))]
        tensors = {
            prefix + name: tensor
            for prefix, chunk in zip(prefixes, chunks, strict=True)
            for name, tensor in (*chunk.named_parameters(), *chunk.named_buffers())
        }
        assert {p.device for chunk in chunks for p in chunk.parameters()} == {torch.device("meta")}
        planned = {shard.name: shard.shape for shard in family_of(hf).name_map(hf).shards(place)}
        assert {name: tuple(tensors[name].shape) for name in planned} == planned
        unplanned = tensors.keys() - planned.keys()
        assert {name.rsplit(".", 1)[1] for name in unplanned} <= NOT_WEIGHTS


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_ranks_of_one_replica_hold_the_published_model_once(layout: str) -> None:
    """Of all that hold the same numbers one exports them: together 31.58B of Nemotron-3-Nano."""
    hf, parallel = read_config(PUBLISHED / NANO), LAYOUTS[layout]
    name_map = family_of(hf).name_map(hf)
    held = 0
    for rank in range(WORLD):
        place = place_of(rank, WORLD, parallel)
        if place.data.rank == 0 or place.expert_data.rank == 0:
            blocks = [block for shard in name_map.shards(place) if shard.exports for block in shard.blocks]
            held += sum(prod(axis.stop - axis.start for axis in block.hf_index) for block in blocks)
    assert held == name_map.parameter_count() == 31_577_940_288


def test_memory_of_the_recipe() -> None:
    """Counted by hand: the first of two stages holds 26 layers, half of each cut tensor, an eighth of the experts."""
    hf, parallel = read_config(PUBLISHED / NANO), LAYOUTS["recipe"]
    place = place_of(0, WORLD, parallel)
    shards = family_of(hf).name_map(hf).shards(place)
    experts = 11 * (128 // 8) * 2 * 2688 * 1856  # 11 expert layers, 16 experts each, up and down
    assert sum(torch.Size(s.shape).numel() for s in shards if s.parameter.expert is not None) == experts
    biases = 11 * 128
    dense = sum(torch.Size(s.shape).numel() for s in shards) - experts - biases
    held = state_bytes(shards, place, itemsize=2)
    assert held.weights == 2 * (dense + experts) + 4 * biases
    assert held.gradients == 4 * (dense + experts)
    assert held.optimizer == 12 * (-(-dense // 128) + experts // 32)
    assert state_bytes(shards, place, itemsize=4).optimizer == 8 * (-(-dense // 128) + experts // 32)
