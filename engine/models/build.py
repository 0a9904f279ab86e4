"""Builds this rank's part of a Megatron HybridModel from a Hugging Face config.json."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.activations import squared_relu
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from cascade_rl.engine.backend.machine import backend
from cascade_rl.engine.backend.process_groups import layout
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.passed_fields import MegatronFields
from cascade_rl.engine.core.settings import DEFAULT_ROUTER, ParallelConfig, RouterConfig
from cascade_rl.engine.models.families.family import Family, family_of
from cascade_rl.engine.models.head import OwnedHead
from cascade_rl.engine.models.hf_config import HfConfig, read, rotary_scaling
from cascade_rl.engine.models.layer_spec import hybrid_stack_spec
from cascade_rl.engine.models.layout import check_layout
from cascade_rl.engine.models.name_map import Cut, Place, stage_layers, vocabulary
from cascade_rl.moe import router as routing

ACTIVATIONS: dict[str, Callable] = {"silu": F.silu, "relu2": squared_relu}

COMMON: dict[str, Any] = {
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    # attention and MLP count as two layers when the initial weights of residual outputs are scaled down
    "is_hybrid_model": True,
    # the loss contract: sums out of the model, one global division
    "calculate_per_token_loss": True,
    # packed micro-batches differ in length, which Megatron's default dispatcher refuses even without experts
    "variable_seq_lengths": True,
    "moe_token_dispatcher_type": "alltoall",
}
EXPERTS: dict[str, Any] = {
    "moe_grouped_gemm": True,
    "moe_router_dtype": "fp32",
    # an auxiliary loss makes the train/rollout gap diverge in RL (NVIDIA-NeMo/RL, grpo_nanov3.yaml)
    "moe_router_load_balancing_type": "none",
}

# A pipeline of two sends both ways between the same ranks at once. If the sends are batched, activations and gradients
# arrive swapped and the losses are silently wrong (measured here: 4.8424 instead of 4.8448). Megatron allows it.
INTERLEAVED: dict[str, Any] = {"overlap_p2p_comm": True, "batch_p2p_comm": False}


def place_of_this_rank() -> Place:
    """The position of this rank in Megatron's process groups."""
    state, parallel = parallel_state, layout()
    return Place(
        virtual_pipeline=parallel.virtual_pipeline,
        pipeline_layers=parallel.pipeline_layers,
        tensor=Cut(state.get_tensor_model_parallel_rank(), state.get_tensor_model_parallel_world_size()),
        pipeline=Cut(state.get_pipeline_model_parallel_rank(), state.get_pipeline_model_parallel_world_size()),
        expert=Cut(state.get_expert_model_parallel_rank(), state.get_expert_model_parallel_world_size()),
        expert_tensor=Cut(state.get_expert_tensor_parallel_rank(), state.get_expert_tensor_parallel_world_size()),
        data=Cut(
            state.get_data_parallel_rank(with_context_parallel=True),
            state.get_data_parallel_world_size(with_context_parallel=True),
        ),
        expert_data=Cut(state.get_expert_data_parallel_rank(), state.get_expert_data_parallel_world_size()),
    )


def padded_vocab(hf: HfConfig, tensor: int) -> int:
    """Rows of embedding and head over all tensor parallel ranks; those from vocab_size on belong to no token."""
    rule = vocabulary("", read(hf, "vocab_size"), 0)
    return rule.shard_shape(tensor)[0] * tensor


class ModelChunks(torch.nn.ModuleList):
    """The chunks of a rank under interleaved pipelining, named as by `NameMap.shards`."""

    def sharded_state_dict(self, **kwargs: Any) -> dict[str, Any]:
        chunks: list[HybridModel] = list(self)
        return {
            f"{number}.{name}": tensor
            for number, chunk in enumerate(chunks)
            for name, tensor in chunk.sharded_state_dict(**kwargs).items()
        }


type RankModel = HybridModel | ModelChunks


def chunks_of(model: RankModel) -> list[HybridModel]:
    """The chunks of this rank, in the order of the layers."""
    return list(model) if isinstance(model, ModelChunks) else [model]


def build_model(
    hf: HfConfig, parallel: ParallelConfig, *, seed: int, router: RouterConfig = DEFAULT_ROUTER
) -> RankModel:
    """This rank's part of the model, freshly initialized from `seed`, on torch's default device. Process groups must
    exist.

    `chunk(input_ids, position_ids, None, packed_seq_params=...)` returns hidden states; see `OwnedHead`.
    Raises UserError if the layout does not divide the model, or if this machine lacks the dispatcher.
    """
    check_layout(hf, parallel)
    chunks = [_build_chunk(hf, parallel, seed, router, number) for number in range(parallel.virtual_pipeline)]
    return ModelChunks(chunks) if len(chunks) > 1 else chunks[0]


def _build_chunk(hf: HfConfig, parallel: ParallelConfig, seed: int, router: RouterConfig, chunk: int) -> HybridModel:
    family, pattern = family_of(hf), family_of(hf).pattern(hf)
    stage = chunk * parallel.pipeline + parallel_state.get_pipeline_model_parallel_rank()
    # Megatron's own rule: with one seed for all, two stages would be initialized to the same weights
    seed += 100 * stage
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)
    config = _transformer_config(family, hf, parallel, router)
    model = HybridModel(
        config=config,
        hybrid_stack_spec=hybrid_stack_spec(backend().spec_provider(), qk_layernorm=config.qk_layernorm),
        vocab_size=padded_vocab(hf, parallel.tensor),
        hybrid_layer_pattern=staged_pattern(
            pattern, stage_layers(len(pattern), parallel.stages, parallel.pipeline_layers)
        ),
        pre_process=stage == 0,
        post_process=stage == parallel.stages - 1,
        vp_stage=chunk if parallel.virtual_pipeline > 1 else None,
        **family.model_kwargs(hf),
    )
    if not config.multi_latent_attention and (scaling := rotary_scaling(hf)):
        rotary = model.rotary_pos_emb  # HybridModel passes no scaling on to it
        rotary.inv_freq = rotary._apply_scaling(rotary.inv_freq, **scaling)
    if model.post_process:
        model.output_layer.__class__ = OwnedHead
    if not router.trained:
        routing.freeze_gates(model)
    _cast_parameters(model, model.config.params_dtype)
    return model


def _cast_parameters(model: HybridModel, dtype: torch.dtype) -> None:
    """Megatron's mixer makes A_log and D in float32, and its resharding of optimizer state fails on parameters of two
    dtypes ("64 must match 8"). Its own Float16Module casts them too. Buffers, the biases of routers, stay float32."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def staged_pattern(pattern: str, stages: list[range]) -> str:
    """The layer pattern with `|` at the borders of the pipeline stages."""
    return "|".join(pattern[stage.start : stage.stop] for stage in stages)


def _transformer_config(
    family: Family, hf: HfConfig, parallel: ParallelConfig, router: RouterConfig
) -> TransformerConfig:
    model = family.transformer_config(hf)
    model["activation_func"] = ACTIVATIONS[model["activation_func"]]
    is_moe = "num_moe_experts" in model
    experts = EXPERTS | _router_fields(router, backend().dispatchers) if is_moe else {}
    dtype = getattr(torch, parallel.precision)
    cuts = {
        "tensor_model_parallel_size": parallel.tensor,
        "pipeline_model_parallel_size": parallel.pipeline,
        "context_parallel_size": parallel.context,
        "expert_model_parallel_size": parallel.expert,
        "expert_tensor_parallel_size": parallel.expert_tensor,
        "sequence_parallel": parallel.sequence,
        "pipeline_dtype": dtype,
        "params_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
    }
    interleaved = INTERLEAVED | {"virtual_pipeline_model_parallel_size": parallel.virtual_pipeline}
    chunks = interleaved if parallel.virtual_pipeline > 1 else {}
    config = MLATransformerConfig if model.get("multi_latent_attention") else TransformerConfig
    passed = recompute_fields(parallel) | passed_to(config, parallel.megatron)
    own = COMMON | model | experts | cuts | chunks | backend().config_overrides
    try:
        return config(**(own | passed))
    except ValueError as refusal:
        if not passed:
            raise
        told = ", ".join(f"{name}={value}" for name, value in passed.items())
        raise UserError(
            f"parallel.recompute and parallel.megatron: expected fields that Megatron accepts for this model, found "
            f"{told}. It says: {refusal}"
        ) from None


def recompute_fields(parallel: ParallelConfig) -> dict[str, Any]:
    """TransformerConfig fields for `parallel.recompute`. Of a full recompute, each layer's input is kept."""
    if not parallel.recompute:
        return {}
    if parallel.recompute == ("full",):
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return {"recompute_granularity": "selective", "recompute_modules": list(parallel.recompute)}


def passed_to(config: type, given: MegatronFields | None) -> dict[str, Any]:
    """The given fields that a configuration class of Megatron has. Raises UserError as `Backend.check_passed` does."""
    values = given.given if given else {}
    backend().check_passed(values)
    return {name: values[name] for name in values.keys() & {item.name for item in fields(config)}}


def _router_fields(router: RouterConfig, dispatchers: Sequence[str]) -> dict[str, Any]:
    """Raises UserError for a dispatcher that this machine does not support."""
    if router.dispatcher not in dispatchers:
        raise UserError(
            f"router.dispatcher: expected one of {', '.join(dispatchers)} on this machine, found {router.dispatcher} "
            "(flex needs CUDA and DeepEP, which docs/gpu.md says how to build)"
        )
    return routing.transformer_fields(router.dispatcher, router.bias_step)
