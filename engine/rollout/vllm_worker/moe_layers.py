"""Finds the layers of a vLLM model that route tokens to experts."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def moe_layers(model: "torch.nn.Module") -> list[Any]:
    """The modules of a vLLM model that route tokens to experts, in layer order."""
    from vllm.model_executor.layers.fused_moe.layer import MoERunner

    return [module for module in model.modules() if isinstance(module, MoERunner)]
