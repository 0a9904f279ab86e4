"""What is passed on to Megatron and vLLM reaches their own objects; what Cascade's guarantees rest on is refused."""

from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.transformer.transformer_config import TransformerConfig

from cascade_rl.engine.backend.machine import backend
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.passed_fields import MegatronFields, PassedFields
from cascade_rl.engine.core.settings import DEFAULT_ROUTER, OptimizerConfig, ParallelConfig
from cascade_rl.engine.models import family_of, read_config
from cascade_rl.engine.models.build import _transformer_config, passed_to
from cascade_rl.engine.train.trainer import _adamw
from tests.engine.models import tiny

MEGATRON = (TransformerConfig, DistributedDataParallelConfig, MegatronOptimizerConfig)


def kinds(hint: Any) -> set[Any]:
    """The types that a field takes, without None: a literal's values, and the class of a list."""
    if get_origin(hint) in (Union, UnionType):
        return set.union(*(kinds(option) for option in get_args(hint)))
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    return {get_origin(hint) or hint} - {type(None)}


def test_every_field_of_megatron_is_there_with_its_type() -> None:
    theirs: dict[str, set[Any]] = {}
    for config in MEGATRON:
        theirs |= {name: kinds(hint) for name, hint in get_type_hints(config).items()}
    ours = {item.name: kinds(get_type_hints(MegatronFields)[item.name]) for item in fields(MegatronFields)}
    texts = {"cp_comm_type"}  # of which Megatron takes any
    assert {name for name, kind in ours.items() if not kind <= theirs.get(name, set())} == texts
    assert set(" ".join(MegatronFields.OWNED.values()).split()) <= theirs.keys()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sequence_parallel", "use parallel.tensor, sequence"),
        ("params_dtype", "use parallel.precision"),
        ("fp8", "use parallel.precision"),
        ("recompute_modules", "use parallel.recompute"),
        ("moe_router_fusion", "use rollout.replay_routes"),
        ("moe_aux_loss_coeff", "no loss but the stage's own"),
        ("moe_token_dispatcher_type", "use router.trained, bias_update_rate and dispatcher"),
        ("adam_eps", "use optimizer of the stage"),
        ("deterministic_mode", "use rollout.deterministic"),
        ("hidden_size", "comes from the config.json of base"),
    ],
)
def test_a_field_that_a_guarantee_rests_on_is_refused(name: str, reason: str) -> None:
    with pytest.raises(UserError, match=rf"parallel\.megatron\.{name}: expected .* found one that .*{reason}"):
        MegatronFields(**{name: 1})


@pytest.mark.parametrize(("name", "nearest"), [("bucket_sice", "bucket_size"), ("fp9", "fp8")])
def test_an_unknown_field_is_refused(name: str, nearest: str) -> None:
    with pytest.raises(UserError, match=f"found '{name}'. Did you mean '{nearest}'"):
        MegatronFields(**{name: 1})


def test_a_field_without_the_one_that_it_needs_is_refused() -> None:
    with pytest.raises(UserError, match="optimizer_cpu_offload: expected optimizer_offload_fraction with it"):
        MegatronFields(optimizer_cpu_offload=True)


@pytest.fixture(scope="module")
def hf_config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("config")
    tiny.nemotron_h(architectures=["NemotronHForCausalLM"]).save_pretrained(folder)
    return read_config(folder)


def transformer(hf_config: dict[str, Any], **parallel: Any) -> TransformerConfig:
    backend()
    return _transformer_config(family_of(hf_config), hf_config, ParallelConfig(**parallel), DEFAULT_ROUTER)


def test_recompute_is_megatrons(hf_config: dict[str, Any]) -> None:
    def told(**parallel: Any) -> tuple[Any, ...]:
        config = transformer(hf_config, **parallel)
        return config.recompute_granularity, config.recompute_method, config.recompute_num_layers

    first = MegatronFields(recompute_method="block", recompute_num_layers=3)
    assert told() == (None, None, None)
    assert told(recompute=("full",)) == ("full", "uniform", 1)
    assert told(recompute=("full",), megatron=first) == ("full", "block", 3)
    assert told(recompute=("moe", "mlp")) == ("selective", None, None)
    assert transformer(hf_config, recompute=("moe", "mlp")).recompute_modules == ["moe", "mlp"]


def test_a_passed_field_reaches_the_object_that_has_it(hf_config: dict[str, Any]) -> None:
    given = MegatronFields(
        moe_shared_expert_overlap=True, overlap_grad_reduce=True, overlap_param_gather=True, bucket_size=7
    )
    assert transformer(hf_config, megatron=given).moe_shared_expert_overlap
    reduce = DistributedDataParallelConfig(**passed_to(DistributedDataParallelConfig, given))
    assert (reduce.overlap_grad_reduce, reduce.overlap_param_gather, reduce.bucket_size) == (True, True, 7)
    adam = _adamw(OptimizerConfig(), ParallelConfig(megatron=given), transformer(hf_config).params_dtype)
    assert adam.overlap_param_gather


def test_what_a_machine_or_megatron_cannot_do_is_refused(hf_config: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"parallel\.megatron\.bias_dropout_fusion: expected false on a machine"):
        transformer(hf_config, megatron=MegatronFields(bias_dropout_fusion=True))
    with pytest.raises(UserError, match="optimizer_cpu_offload: expected false on a machine without CUDA"):
        transformer(hf_config, megatron=MegatronFields(optimizer_cpu_offload=True, optimizer_offload_fraction=1.0))
    with pytest.raises(UserError, match="that Megatron accepts for this model, found bias_activation_fusion=True"):
        transformer(hf_config, megatron=MegatronFields(bias_activation_fusion=True))


def test_nothing_given_is_nothing_passed() -> None:
    assert all(item.default is None for cls in PassedFields.__subclasses__() for item in fields(cls))
    assert MegatronFields().given == {}
