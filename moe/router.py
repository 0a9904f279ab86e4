"""Finds the routers of a Megatron model, and sets how they work."""

from typing import Any

import torch


def routers(model: torch.nn.Module) -> list[Any]:
    """The TopKRouters of a model, or of this rank's part of one."""
    from megatron.core.transformer.moe.router import TopKRouter

    return [module for module in model.modules() if isinstance(module, TopKRouter)]


def expert_layer(router: Any, pattern: str) -> int:
    """Index of a router's layer among the expert layers of the whole model, whose layer pattern is `pattern`."""
    return pattern[: router.layer_number - 1].count("E")


def transformer_fields(dispatcher: str, bias_step: float) -> dict[str, Any]:
    """TransformerConfig fields for a dispatcher and for the step of each expert's selection bias."""
    lengths = {"variable_seq_lengths": False} if dispatcher == "allgather" else {}
    return {"moe_token_dispatcher_type": dispatcher, "moe_router_bias_update_rate": bias_step, **lengths}


def freeze_gates(model: torch.nn.Module) -> None:
    """Call this before DDP and the optimizer are made: they leave out frozen parameters. Biases are not parameters."""
    for router in routers(model):
        router.weight.requires_grad_(False)
