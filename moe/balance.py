"""How evenly the experts are used: tokens per expert, counted in the forward passes of training.

Padding does not count, and each real token counts once. Ranks of sequence, context and data parallelism route
different tokens (Megatron refuses experts under tensor parallelism without sequence parallelism). Ranks of pipeline
parallelism have different layers.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from cascade_rl.moe.router import expert_layer, routers


class Balance:
    """The counts of one model."""

    def __init__(self, model: torch.nn.Module, pattern: str, experts: int, device: torch.device) -> None:
        """`model` is this rank's part, `pattern` the layer pattern of the whole model; `experts` is 0 if dense."""
        self._tokens = torch.zeros(pattern.count("E"), experts, dtype=torch.int64, device=device)
        for router in routers(model):
            router.register_forward_hook(partial(_count, self._tokens[expert_layer(router, pattern)]))

    def take(self) -> np.ndarray:
        """Tokens of the global batch that each expert got since the last call: int64 [expert layers, experts].

        Collective; the same on every rank.
        """
        total = self._tokens.clone()
        self._tokens.zero_()
        if total.numel():
            dist.all_reduce(total)
        return total.cpu().numpy()


def _count(row: Tensor, _router: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    """Adds the choices of one router to its row [experts] of the table."""
    if torch.is_grad_enabled():
        (_, padding), (_, routing_map) = inputs, output  # bool, [tokens, 1] and [tokens, experts]
        row += (routing_map & ~padding.reshape(-1, 1)).sum(0)


def balance_metrics(tokens: np.ndarray) -> dict[str, float]:
    """The worst expert layer of a [expert layers, experts] table; nothing for a dense model.

    expert_load_ratio  tokens of the busiest expert / mean over the experts, 1 when even
    experts_unused     share of the experts that got no token
    """
    if not tokens.size:
        return {}
    return {
        "expert_load_ratio": float((tokens.max(1) / tokens.mean(1)).max()),
        "experts_unused": float((tokens == 0).mean(1).max()),
    }
