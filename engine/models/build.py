"""From a Hugging Face config.json to this rank's part of a Megatron HybridModel."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.activations import squared_relu
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

from cascade_rl.engine.backend import backend
from cascade_rl.engine.config import ParallelConfig
from cascade_rl.engine.layer_spec import hybrid_stack_spec
from cascade_rl.engine.models.family import Family, check_layout, family_of
from cascade_rl.engine.models.head import OwnedHead
from cascade_rl.engine.models.hf_config import HfConfig, read
from cascade_rl.engine.models.name_map import Cut, Place, equal_ranges, vocabulary

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
    # an auxiliary loss makes the train/rollout gap diverge in RL (NeMo-RL's Nano-3 recipe)
    "moe_router_load_balancing_type": "none",
}


def place_of_this_rank() -> Place:
    """Where this rank sits in Megatron's process groups."""
    state = parallel_state
    return Place(
        tensor=Cut(state.get_tensor_model_parallel_rank(), state.get_tensor_model_parallel_world_size()),
        pipeline=Cut(
            state.get_pipeline_model_parallel_rank(), state.get_pipeline_model_parallel_world_size()
        ),
        expert=Cut(state.get_expert_model_parallel_rank(), state.get_expert_model_parallel_world_size()),
        expert_tensor=Cut(
            state.get_expert_tensor_parallel_rank(), state.get_expert_tensor_parallel_world_size()
        ),
        data=Cut(
            state.get_data_parallel_rank(with_context_parallel=True),
            state.get_data_parallel_world_size(with_context_parallel=True),
        ),
        expert_data=Cut(state.get_expert_data_parallel_rank(), state.get_expert_data_parallel_world_size()),
    )


def padded_vocab(hf: HfConfig, tensor: int) -> int:
    """Rows of embedding and head over all tensor parallel ranks; those from vocab_size on are no token's."""
    rule = vocabulary("", read(hf, "vocab_size"), 0)
    return rule.shard_shape(tensor)[0] * tensor


def build_model(hf: HfConfig, parallel: ParallelConfig, *, seed: int) -> HybridModel:
    """This rank's part of the model, freshly initialized from `seed`; process groups must exist.

    `model(input_ids, position_ids, None, packed_seq_params=...)` gives hidden states (see `OwnedHead`).
    Raises UserError where the layout does not divide the model.
    """
    check_layout(hf, parallel)
    family, place = family_of(hf), place_of_this_rank()
    # other layers on other stages: Megatron's own rule, without which two stages would draw the same weights
    seed += 100 * place.pipeline.rank
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)
    model = HybridModel(
        config=_transformer_config(family, hf, parallel),
        hybrid_stack_spec=hybrid_stack_spec(backend().spec_provider(), qk_layernorm=family.qk_layernorm),
        vocab_size=padded_vocab(hf, parallel.tensor),
        hybrid_layer_pattern=staged_pattern(family.pattern(hf), parallel.pipeline),
        pre_process=place.pipeline.rank == 0,
        post_process=place.pipeline.rank == place.pipeline.size - 1,
        **family.model_kwargs(hf),
    )
    if model.post_process:
        model.output_layer.__class__ = OwnedHead
    return model.to(backend().device)


def staged_pattern(pattern: str, stages: int) -> str:
    """The layer pattern with `|` at the borders of the pipeline stages."""
    return "|".join(pattern[stage.start : stage.stop] for stage in equal_ranges(len(pattern), stages))


def _transformer_config(family: Family, hf: HfConfig, parallel: ParallelConfig) -> TransformerConfig:
    model = family.transformer_config(hf)
    model["activation_func"] = ACTIVATIONS[model["activation_func"]]
    experts = EXPERTS if "num_moe_experts" in model else {}
    layout = {
        "tensor_model_parallel_size": parallel.tensor,
        "pipeline_model_parallel_size": parallel.pipeline,
        "expert_model_parallel_size": parallel.expert,
        "expert_tensor_parallel_size": parallel.expert_tensor,
        "sequence_parallel": parallel.sequence,
        "pipeline_dtype": torch.float32,
    }
    return TransformerConfig(**(COMMON | model | experts | layout | backend().config_overrides))
