"""Experts without a gate on the CPU, in plain torch: act(x W1^T) W2^T, one pair of products per expert."""

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts


class NonGatedExperts(CPUUnquantizedExperts):
    """Squared ReLU only, as in Nemotron-3. Weights stay unpacked, w1 [experts, width, hidden] and
    w2 [experts, hidden, width], so that a reload needs no packing."""

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return True

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return activation == MoEActivation.RELU2_NO_MUL

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Nothing to pack."""

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        *_: Any,
        **__: Any,
    ) -> None:
        """Writes sum over k of topk_weights[t, k] * expert(hidden_states[t]) into output [tokens, hidden]."""
        tokens, topk = topk_ids.shape
        chosen = topk_ids.flatten()  # [tokens * topk]
        order = chosen.argsort(stable=True)
        rows = hidden_states[order // topk]  # [tokens * topk, hidden], sorted by expert
        start = 0
        for expert, count in enumerate(chosen.bincount(minlength=len(w1)).tolist()):
            if count:
                mine = rows[start : start + count]
                width = torch.mm(mine, w1[expert].t()).relu_().square_()
                torch.mm(width, w2[expert].t(), out=mine)
                start += count
        back = torch.empty_like(rows)
        back[order] = rows
        torch.sum(back.view(tokens, topk, -1) * topk_weights.unsqueeze(-1), dim=1, out=output)
