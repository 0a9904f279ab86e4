"""The map in pure numbers: against layouts written out by hand, and against the sizes of published models."""

import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from cascade_rl.engine import models
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.models import family_of, read_config
from cascade_rl.engine.models.name_map import (
    Cut,
    NameMap,
    Part,
    Place,
    Rule,
    column,
    equal_ranges,
    interleaved,
    row,
    vocabulary,
)

# As in engine/models/published/nemotron_3_nano_30b_a3b/config.json.
NANO_30B = {
    "architectures": ["NemotronHForCausalLM"],
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "hidden_size": 2688,
    "vocab_size": 131072,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 1856,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "routed_scaling_factor": 2.5,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 262144,
}
QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "vocab_size": 151936,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 40960,
}
SMOLLM2_135M = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "vocab_size": 49152,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


PUBLISHED = Path(models.__file__).parent / "published"
GLM_AIR, DEEPSEEK_V3, GLM_FLASH, QWEN3_NEXT = (
    read_config(PUBLISHED / name) for name in ("glm_4_5_air", "deepseek_v3", "glm_4_7_flash", "qwen3_next_80b_a3b")
)


def name_map(hf: dict) -> NameMap:
    return family_of(hf).name_map(hf)


def shard(rule: Rule, tensors: dict[str, np.ndarray], rank: int, size: int) -> np.ndarray:
    out = np.full(rule.shard_shape(size), -1)
    for block in rule.blocks(rank, size):
        out[block.shard_index] = tensors[block.hf_name][block.hf_index]
    return out


def numbered(rule: Rule) -> dict[str, np.ndarray]:
    """HF tensors all of whose entries are different."""
    return {
        name: np.arange(np.prod(shape)).reshape(shape) + 10**6 * i
        for i, (name, shape) in enumerate(rule.hf_shapes().items())
    }


@pytest.mark.parametrize("size", [1, 2])
def test_queries_keys_and_values_are_interleaved_by_key_value_head(size: int) -> None:
    heads, groups, width, hidden = 8, 4, 3, 5
    query, key, value = Part("q", heads, width), Part("k", groups, width), Part("v", groups, width)
    rule = interleaved(query, key, value, units=groups, others=(hidden,))
    hf = numbered(rule)
    rows = []
    for group in range(groups):
        rows += [hf["q"][2 * group * width : 2 * (group + 1) * width]]
        rows += [hf[name][group * width : (group + 1) * width] for name in "kv"]
    whole = np.concatenate(rows)
    stretch = len(whole) // size
    for rank in range(size):
        np.testing.assert_array_equal(shard(rule, hf, rank, size), whole[rank * stretch : (rank + 1) * stretch])


@pytest.mark.parametrize("size", [1, 2])
def test_queries_and_gates_that_take_turns_are_told_apart(size: int) -> None:
    """In the checkpoint the gate of each head is behind its query; for Megatron each group has its queries first."""
    heads, groups, width, hidden = 8, 4, 3, 5
    query, gate = (Part("q", heads, width, start, stride=2 * width) for start in (0, width))
    rule = interleaved(query, gate, Part("k", groups, width), units=groups, others=(hidden,))
    assert rule.hf_shapes() == {"q": (2 * heads * width, hidden), "k": (groups * width, hidden)}
    hf = numbered(rule)
    head = hf["q"].reshape(heads, 2, width, hidden)
    of_group = [head[2 * group : 2 * group + 2].swapaxes(0, 1).reshape(-1, hidden) for group in range(groups)]
    keys = hf["k"].reshape(groups, width, hidden)
    whole = np.concatenate([rows for pair in zip(of_group, keys, strict=True) for rows in pair])
    stretch = len(whole) // size
    for rank in range(size):
        np.testing.assert_array_equal(shard(rule, hf, rank, size), whole[rank * stretch : (rank + 1) * stretch])


def test_gate_and_up_are_each_cut() -> None:
    rule = column(Part("gate", 6), Part("up", 6), others=(2,))
    hf = numbered(rule)
    expected = np.concatenate([hf["gate"][4:6], hf["up"][4:6]])
    np.testing.assert_array_equal(shard(rule, hf, rank=2, size=3), expected)


def test_parts_of_one_tensor_are_each_cut() -> None:
    rule = column(Part("in", 4, 3), Part("in", 2, 5, start=12), Part("in", 4, 1, start=22))
    hf = {"in": np.arange(26)}
    assert rule.hf_shapes() == {"in": (26,)}
    assert shard(rule, hf, 1, 2).tolist() == [*range(6, 12), *range(17, 22), 24, 25]


def test_rows_are_cut_along_the_inputs() -> None:
    rule = row(Part("down", 6), outputs=4)
    hf = numbered(rule)
    np.testing.assert_array_equal(shard(rule, hf, 1, 3), hf["down"][:, 2:4])


@pytest.mark.parametrize(("size", "padded"), [(1, 256), (2, 256), (4, 256), (3, 384)])
def test_vocabulary_is_padded_to_the_same_size_under_any_usual_layout(size: int, padded: int) -> None:
    rule = vocabulary("embedding", 200, 2)
    hf = numbered(rule)
    whole = np.concatenate([shard(rule, hf, rank, size) for rank in range(size)])
    np.testing.assert_array_equal(whole[:200], hf["embedding"])
    assert whole.shape == (padded, 2)
    assert (whole[200:] == -1).all()


def test_key_value_heads_may_be_fewer_than_ranks_but_query_heads_may_not() -> None:
    rule = interleaved(Part("q", 4, 3), Part("k", 2, 3), Part("v", 2, 3), units=2, others=())
    assert rule.broken_part(4) is None
    assert rule.broken_part(8) == Part("q", 4, 3)
    assert rule.broken_part(3) == Part("q", 4, 3)
    every_head_its_own = interleaved(*(Part(name, 2, 3) for name in "qkv"), units=2, others=())
    assert every_head_its_own.broken_part(4) == Part("q", 2, 3)


@pytest.mark.parametrize("total", [1, 5, 8])
def test_equal_ranges_cover_everything_once(total: int) -> None:
    ranges = equal_ranges(total, 3)
    assert [i for part in ranges for i in part] == list(range(total))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


TINY_NEMOTRON = NANO_30B | {
    "hybrid_override_pattern": "ME-*E",
    "hidden_size": 8,
    "vocab_size": 150,
    "num_attention_heads": 4,
    "head_dim": 2,
    "intermediate_size": 12,
    "mamba_num_heads": 8,
    "mamba_head_dim": 2,
    "n_groups": 4,
    "ssm_state_size": 3,
    "n_routed_experts": 4,
    "moe_intermediate_size": 6,
    "moe_shared_expert_intermediate_size": 4,
}
TINY_TIED = SMOLLM2_135M | {
    "hidden_size": 8,
    "vocab_size": 150,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 12,
}


def places(tensor: int, pipeline: int, expert: int, expert_tensor: int, data: int) -> list[Place]:
    """All ranks of a layout, in Megatron's order (tensor fastest, then data, then pipeline)."""
    ranks, model = [], tensor * data
    for stage, rank in product(range(pipeline), range(model)):
        expert_data = model // (expert * expert_tensor)
        ranks.append(
            Place(
                tensor=Cut(rank % tensor, tensor),
                pipeline=Cut(stage, pipeline),
                expert_tensor=Cut(rank % expert_tensor, expert_tensor),
                expert=Cut(rank // expert_tensor % expert, expert),
                data=Cut(rank // tensor, data),
                expert_data=Cut(rank // (expert_tensor * expert), expert_data),
            )
        )
    return ranks


@pytest.mark.parametrize(
    ("hf", "layout"),
    [
        (TINY_NEMOTRON, (1, 1, 1, 1, 1)),
        (TINY_NEMOTRON, (2, 1, 2, 1, 1)),
        (TINY_NEMOTRON, (2, 2, 2, 2, 2)),
        (TINY_NEMOTRON, (4, 3, 1, 1, 1)),
        (TINY_NEMOTRON, (1, 1, 4, 1, 4)),
        (TINY_TIED, (1, 2, 1, 1, 2)),
        (TINY_TIED, (4, 3, 1, 1, 1)),
    ],
)
def test_every_number_is_exported_exactly_once_under_any_layout(hf: dict, layout: tuple[int, ...]) -> None:
    whole = name_map(hf)
    written = {name: np.zeros(tensor.shape, int) for name, tensor in whole.hf_tensors().items()}
    for place in places(*layout):
        for shard in whole.shards(place):
            for block in shard.blocks if shard.exports else ():
                written[block.hf_name][block.hf_index] += 1
    assert all((count == 1).all() for count in written.values())


@pytest.mark.parametrize("pipeline_layers", [None, (1, 1, 1, 2), (2, 1, 1, 1)])
def test_stages_of_a_rank_are_exported_once_and_named_by_chunk(pipeline_layers: tuple[int, ...] | None) -> None:
    whole = name_map(TINY_NEMOTRON)
    parts = [replace(place, virtual_pipeline=2, pipeline_layers=pipeline_layers) for place in places(2, 2, 2, 1, 1)]
    written = {name: np.zeros(tensor.shape, int) for name, tensor in whole.hf_tensors().items()}
    for place in parts:
        shards = whole.shards(place)
        assert len({shard.name for shard in shards}) == len(shards)
        for shard in shards:
            for block in shard.blocks if shard.exports else ():
                written[block.hf_name][block.hf_index] += 1
    assert all((count == 1).all() for count in written.values())


def test_every_second_stage_is_a_chunk_of_a_rank() -> None:
    whole = name_map(TINY_NEMOTRON)
    place = Place(pipeline=Cut(1, 2), virtual_pipeline=2, pipeline_layers=(1, 2, 1, 1))
    assert whole.chunks(place) == [range(1, 3), range(4, 5)]
    names = {str(shard.parameter): shard.name for shard in whole.shards(place)}
    assert names["decoder.layers.2.mlp.linear_fc1.weight"] == "0.decoder.layers.1.mlp.linear_fc1.weight"
    assert names["decoder.layers.4.mlp.router.weight"] == "1.decoder.layers.0.mlp.router.weight"
    assert names["output_layer.weight"] == "1.output_layer.weight"


def test_blocks_of_a_shard_never_overlap_and_leave_only_padding() -> None:
    for place in places(2, 2, 2, 1, 2):
        for shard in name_map(TINY_NEMOTRON).shards(place):
            held = np.zeros(shard.shape, int)
            for block in shard.blocks:
                held[block.shard_index] += 1
            assert held.max() <= 1
            assert (held == 1).all() or shard.parameter.rule.multiple > 1


def test_layers_and_experts_are_numbered_from_the_rank_that_holds_them() -> None:
    place = Place(pipeline=Cut(1, 2), expert=Cut(1, 2))
    names = {str(shard.parameter): shard.name for shard in name_map(TINY_NEMOTRON).shards(place)}
    assert names["decoder.layers.4.mlp.experts.linear_fc1.weight3"] == "decoder.layers.2.mlp.experts.linear_fc1.weight1"
    assert "embedding.word_embeddings.weight" not in names
    assert "decoder.layers.4.mlp.experts.linear_fc1.weight1" not in names


@pytest.mark.parametrize(
    ("hf", "numbers"),
    [
        (NANO_30B, 31_577_940_288),
        (QWEN3_30B, 30_532_122_624),
        (SMOLLM2_135M, 134_515_008),
        (GLM_AIR, 106_852_251_264),  # "106 billion"
        (DEEPSEEK_V3, 671_026_419_200),  # "671B"
        (GLM_FLASH, 29_943_393_920),  # "30B-A3B"
        (QWEN3_NEXT, 79_674_391_296),  # "80B"
    ],
    ids=["nano", "qwen3", "smollm2", "GLM-4.5-Air", "DeepSeek-V3", "GLM-4.7-Flash", "Qwen3-Next"],
)
def test_published_models_have_their_published_size(hf: dict, numbers: int) -> None:
    assert name_map(hf).parameter_count() == numbers


def test_the_30b_layout_of_the_public_recipe_fits() -> None:
    """TP2 PP2 EP8: a rank has an eighth of the experts of its pipeline stage.

    Source of the layout: NVIDIA-NeMo/RL, examples/nemo_gym/grpo_nanov3.yaml."""
    whole = name_map(NANO_30B)
    shards = whole.shards(Place(tensor=Cut(1, 2), pipeline=Cut(1, 2), expert=Cut(7, 8)))
    experts = [shard for shard in shards if shard.parameter.expert is not None]
    assert len(experts) == NANO_30B["hybrid_override_pattern"][26:].count("E") * 128 // 8 * 2
    assert family_of(NANO_30B).transformer_config(NANO_30B)["num_layers"] == 52


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (Place(tensor=Cut(0, 3)), "tensor parallel size must divide the 64 .* found 3: change `tensor`"),
        (Place(tensor=Cut(0, 16)), r"divide the 8 .*mixer\.in_proj\.weight.* found 16"),
        (
            Place(expert=Cut(0, 3)),
            "expert parallel size must divide the 128 experts; found 3: change `expert`",
        ),
        (Place(expert_tensor=Cut(0, 5)), "expert tensor parallel size must divide the 1856"),
        (Place(pipeline=Cut(0, 53)), "pipeline parallel size must be at most 52"),
    ],
)
def test_a_layout_that_does_not_divide_is_a_user_error(place: Place, message: str) -> None:
    with pytest.raises(UserError, match=message):
        name_map(NANO_30B).shards(place)


def test_a_dense_model_has_no_expert_parallelism() -> None:
    with pytest.raises(UserError, match="expert parallel size must be 1 in a model without experts; found 2"):
        name_map(SMOLLM2_135M).shards(Place(expert=Cut(0, 2)))


@pytest.mark.parametrize(
    ("hf", "head"),
    [(GLM_AIR, "model.layers.46."), (DEEPSEEK_V3, "model.layers.61."), (GLM_FLASH, "model.layers.47.")],
)
def test_heads_that_predict_further_tokens_are_beside_the_model(hf: dict, head: str) -> None:
    """README_WEIGHTS.md of deepseek-ai/DeepSeek-V3; `_keys_to_ignore_on_load_unexpected` of transformers."""
    assert name_map(hf).beside == (head,)
    assert name_map(hf | {"num_nextn_predict_layers": 0}).beside == ()
    assert not any(name.startswith(head) for name in name_map(hf).hf_tensors())


def test_qwen3_next_has_attention_in_every_fourth_layer() -> None:
    """transformers 5 writes a list of kinds in place of the interval."""
    pattern = family_of(QWEN3_NEXT).pattern(QWEN3_NEXT)
    assert pattern == "GEGEGE*E" * 12
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    listed = QWEN3_NEXT | {"layer_types": kinds * 12, "full_attention_interval": None}
    assert family_of(listed).pattern(listed) == pattern
    assert name_map(QWEN3_NEXT).beside == ("mtp.",)


@pytest.mark.parametrize("architecture", ["Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"])
def test_gemma_is_refused_with_what_is_missing(architecture: str) -> None:
    told = f"expected a model whose layers Cascade has, found {architecture}.*Soft-capped.*sliding.*Take a model of"
    with pytest.raises(UserError, match=told):
        family_of({"architectures": [architecture]})


@pytest.mark.parametrize("architecture", ["Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForCausalLM"])
def test_qwen3_5_is_refused_with_what_is_missing(architecture: str) -> None:
    told = f"found {architecture}.*Qwen3-Next, whose layers it has, is built.*nested config.*Take a model of another"
    with pytest.raises(UserError, match=told):
        family_of({"architectures": [architecture]})


@pytest.mark.parametrize(
    ("hf", "message"),
    [
        (
            {"architectures": ["MixtralForCausalLM"]},
            "NemotronHForCausalLM, Qwen3ForCausalLM.* has MixtralForCausalLM",
        ),
        ({}, "config.json has none"),
        (NANO_30B | {"moe_latent_size": 64}, "moe_latent_size = None; config.json has 64"),
        (
            SMOLLM2_135M | {"rope_scaling": {"rope_type": "yarn"}},
            "rope_type = 'default' or 'llama3'; config.json has 'yarn'",
        ),
        (SMOLLM2_135M | {"rope_scaling": {"rope_type": "llama3"}}, "config.json lacks factor"),
        (
            DEEPSEEK_V3 | {"rope_scaling": {"type": "linear"}},
            "'default' or 'yarn', found 'linear'",
        ),
        (DEEPSEEK_V3 | {"rope_interleave": False}, "rope_interleave = True; config.json has False"),
        (DEEPSEEK_V3 | {"topk_method": None}, "topk_method"),
        (DEEPSEEK_V3 | {"scoring_func": None}, "scoring_func"),
        (DEEPSEEK_V3 | {"scoring_func": "softmax"}, "scoring_func = 'sigmoid'; config.json has 'softmax'"),
        (DEEPSEEK_V3 | {"num_experts_per_tok": 4}, "num_experts_per_tok = 8; config.json has 4"),
        (GLM_AIR | {"rope_scaling": {"type": "yarn"}}, "rope_type = 'default' or 'llama3'; config.json has 'yarn'"),
        (
            SMOLLM2_135M | {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True},
            "Qwen2ForCausalLM needs use_sliding_window = False; config.json has True",
        ),
        (
            {key: QWEN3_30B[key] for key in QWEN3_30B if key != "moe_intermediate_size"},
            "lacks moe_intermediate_size",
        ),
        (NANO_30B | {"hybrid_override_pattern": "MX"}, "found 'X' at layer 1"),
    ],
)
def test_a_config_that_is_not_supported_is_a_user_error(hf: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        family = family_of(hf)
        family.transformer_config(hf), family.model_kwargs(hf), family.name_map(hf)


def test_the_map_is_free_of_torch() -> None:
    code = "import sys, cascade_rl.engine.models; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
