"""The routers of a Megatron model: where they are, and what `RouterConfig` makes of them."""

from collections.abc import Sequence
from typing import Any

import torch

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import RouterConfig


def routers(model: torch.nn.Module) -> list[Any]:
    """The TopKRouters of a model, or of this rank's part of one."""
    from megatron.core.transformer.moe.router import TopKRouter

    return [module for module in model.modules() if isinstance(module, TopKRouter)]


def expert_layer(router: Any, pattern: str) -> int:
    """Number of a router's layer among the expert layers of the whole model, whose layer pattern is `pattern`."""
    return pattern[: router.layer_number - 1].count("E")


def transformer_fields(config: RouterConfig, dispatchers: Sequence[str]) -> dict[str, Any]:
    """TransformerConfig fields. Raises UserError for a dispatcher that is none of this machine's `dispatchers`."""
    if config.dispatcher not in dispatchers:
        raise UserError(
            f"router.dispatcher: expected one of {', '.join(dispatchers)} on this machine, found {config.dispatcher} "
            "(flex is DeepEP, which needs CUDA)"
        )
    lengths = {"variable_seq_lengths": False} if config.dispatcher == "allgather" else {}
    return {
        "moe_token_dispatcher_type": config.dispatcher,
        "moe_router_bias_update_rate": config.bias_step,
        **lengths,
    }


def freeze_gates(model: torch.nn.Module) -> None:
    """Before DDP and the optimizer are made, which leave out what needs no gradient. The biases are no parameters."""
    for router in routers(model):
        router.weight.requires_grad_(False)
