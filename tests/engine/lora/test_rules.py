"""Which weights get adapters, and what is refused."""

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.passed_fields import MegatronFields
from cascade_rl.engine.core.settings import LoraConfig, ParallelConfig
from cascade_rl.engine.lora.rules import adapter_shards, check_lora, factor_map, module_of
from cascade_rl.engine.models.families.family import family_of
from cascade_rl.engine.models.name_map import Cut, NameMap, Place
from tests.engine.models import tiny

ONE = ParallelConfig()
ARCHITECTURES = {
    "nemotron_h": "NemotronHForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
}
EVERY_MATRIX = {
    "nemotron_h": {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "in_proj", "out_proj"},
    "qwen3_moe": {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
}
EVERY_MATRIX["qwen3_next"] = EVERY_MATRIX["qwen3_moe"] | {"in_proj_qkvz", "in_proj_ba", "out_proj"}


def name_map(family: str) -> NameMap:
    config = tiny.FAMILIES[family]()
    hf = config.to_dict() | {"architectures": [ARCHITECTURES[family]]}
    return family_of(hf).name_map(hf)


@pytest.mark.parametrize("family", list(EVERY_MATRIX))
def test_every_split_matrix_has_an_adapter_of_its_shape(family: str) -> None:
    model, lora = name_map(family), LoraConfig(rank=3)
    shapes = {name: tensor.shape for name, tensor in factor_map(model, lora).hf_tensors().items()}
    matrices = {
        name: tensor.shape
        for name, tensor in model.hf_tensors().items()
        if module_of(name) in EVERY_MATRIX[family] and len(tensor.shape) == 2
    }
    expected = {}
    for name, (outputs, inputs) in matrices.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        expected |= {f"{module}.lora_A.weight": (3, inputs), f"{module}.lora_B.weight": (outputs, 3)}
    assert shapes == expected


def test_ranks_share_a_factor_as_they_share_its_weight() -> None:
    """Query, key and value of the second of two ranks, and the way back."""
    place, lora = Place(tensor=Cut(1, 2)), LoraConfig(rank=3, targets=("q_proj", "k_proj", "v_proj", "o_proj"))
    into, back = adapter_shards(name_map("qwen3_moe"), lora, place)[:2]
    assert (into.weight.shape, into.a.shape, into.b.shape) == ((64, 64), (9, 64), (64, 3))
    assert [[(run.start, run.stop) for run in runs] for runs in into.rows()] == [[(0, 32)], [(32, 48)], [(48, 64)]]
    assert (back.weight.shape, back.a.shape, back.b.shape) == ((64, 32), (3, 32), (64, 3))
    assert [shard.exports for shard in (into.a, into.b, back.a, back.b)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("lora", "parallel", "told"),
    [
        (LoraConfig(rank=2, targets=("q_proj", "wq")), ONE, "found wq"),
        (LoraConfig(rank=2, targets=("q_proj", "v_proj")), ONE, "all or none of q_proj, k_proj, v_proj"),
        (LoraConfig(rank=2), ParallelConfig(megatron=MegatronFields(overlap_grad_reduce=True)), "overlap_grad_reduce"),
    ],
)
def test_what_cannot_be_trained_is_refused(lora: LoraConfig, parallel: ParallelConfig, told: str) -> None:
    with pytest.raises(UserError, match=told):
        check_lora(name_map("qwen3_moe"), lora, parallel)
