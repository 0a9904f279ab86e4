"""Padding tokens do not count in router statistics (Megatron-LM#6114, Megatron-Bridge#5470)."""

import torch
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from cascade_rl.moe.router import routers


class PaddingAwareRouter(TopKRouter):
    """Megatron 0.19.2 masks its [tokens, experts] map with a [tokens] mask, whose shape fits only by accident."""

    def _apply_expert_bias(self, routing_map: Tensor, padding_mask: Tensor | None = None) -> None:
        super()._apply_expert_bias(routing_map, None if padding_mask is None else padding_mask[:, None])


def ignore_padding(model: torch.nn.Module) -> None:
    """Makes every router of the model respect the padding mask that its forward pass gets."""
    for router in routers(model):
        router.__class__ = PaddingAwareRouter
