"""Checks, before anything starts, whether vLLM can hold a model in engines of a given layout. Torch-free."""

from collections.abc import Mapping
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.extras import require_extra
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches

# Sizes of the model that vLLM 0.32 splits equally over its tensor parallel workers.
CUT = (
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "moe_shared_expert_intermediate_size",
    "mamba_num_heads",
    "n_groups",
)
EXPERT_WIDTH = ("moe_intermediate_size",)
EXPERTS = ("num_experts", "n_routed_experts")  # of which expert parallel workers hold whole ones


def check_cut(hf: Mapping[str, Any], rollout: RolloutConfig) -> None:
    """Raises UserError if `tensor` does not divide the model."""
    for key in (*CUT, *(EXPERTS if rollout.expert_parallel else EXPERT_WIDTH)):
        count = hf.get(key) or rollout.tensor
        if count % rollout.tensor and not _is_repeated(key, count, rollout.tensor):
            raise UserError(
                f"rollout.tensor: expected a divisor of the model's {key} = {count}, found {rollout.tensor}."
            )


def check_build(rollout: RolloutConfig) -> None:
    """Raises UserError if this environment has no vLLM, or one that does not support a setting."""
    require_extra("vllm", "sampling", "cpu or cuda")
    for name, reason in vllm_cpu_patches.refused().items():
        if getattr(rollout, name):
            raise UserError(f"rollout.{name}: expected False, since the CPU build of vLLM {reason}; found True.")
    for name in vllm_cpu_patches.fixed() if rollout.vllm else ():
        if (given := getattr(rollout.vllm, name)) is not None:
            raise UserError(
                f"rollout.vllm.{name}: expected none, since the CPU build of vLLM works with one value only; found "
                f"{given}. Leave the field out on this machine."
            )


def _is_repeated(key: str, count: int, workers: int) -> bool:
    """Whether vLLM gives the same head or group to several workers."""
    return (key == "num_key_value_heads" and workers % count == 0) or (key == "n_groups" and count == 1)
