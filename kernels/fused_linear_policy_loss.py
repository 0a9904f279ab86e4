"""The policy loss straight from hidden states and head weight, its gradient made in forward.

`fused_linear_logprob` and `policy_loss` in one step: they bound the memory, this holds on to nothing of theirs.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from cascade_rl.kernels.fused_linear_logprob import check_operands, fused_linear_logprob
from cascade_rl.kernels.parts.compact_rows import check_mask
from cascade_rl.kernels.parts.vocabulary import IGNORED, check_one_device
from cascade_rl.kernels.policy_loss import PolicyLoss, PolicyObjective, policy_loss


def fused_linear_policy_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    advantage: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    objective: PolicyObjective,
    temperature: Tensor | float = 1.0,
    *,
    vocab_size: int,
    old_logprob: Tensor | None = None,
    rollout_logprob: Tensor | None = None,
    reference_logprob: Tensor | None = None,
    keep_logit: Tensor | None = None,
    tp_group: dist.ProcessGroup | None = None,
    chunk_tokens: int = 1024,
    saved_bytes: int | None = None,
) -> PolicyLoss:
    """`policy_loss` of the targets' log-probs, with gradient into hidden and weight.

    hidden, weight, targets, temperature  [tokens, hidden], [padded vocab / tp, hidden], [tokens], [tokens] or a number
    vocab_size, keep_logit, chunk_tokens  as in `fused_linear_logprob`, and tp_group and saved_bytes too
    advantage, mask, the log-probs        [tokens], as in `policy_loss`, and cu_seqlens [sequences + 1] too
    objective                             what is minimised

    Forward computes the gradients of the loss sum and releases all else: between forward and backward live one tensor
    like `hidden` and one like `weight`, not the hidden states, and backward only multiplies them by the gradient that
    arrives, which rounds once more. Of tokens outside the mask all but the temperature may be anything. Bits, ranks,
    the sum of the gradient of hidden over tp_group, and the number of products are those of the two ops. Without
    gradients (torch.no_grad, all frozen) only the value is computed.

    Raises ValueError for what the two ops refuse, and for a loss token without a target.
    """
    check_operands(hidden, weight)
    check_mask(mask, len(hidden))
    check_one_device(hidden=hidden, targets=targets, mask=mask)
    hidden_leaf, weight_leaf = (tensor.detach().requires_grad_(tensor.requires_grad) for tensor in (hidden, weight))
    logprob = fused_linear_logprob(
        hidden_leaf,
        weight_leaf,
        _loss_targets(targets, mask),
        temperature,
        vocab_size=vocab_size,
        keep_logit=keep_logit,
        tp_group=tp_group,
        chunk_tokens=chunk_tokens,
        saved_bytes=saved_bytes,
    ).logprob
    found = policy_loss(
        logprob,
        advantage,
        mask,
        cu_seqlens,
        objective,
        old_logprob=old_logprob,
        rollout_logprob=rollout_logprob,
        reference_logprob=reference_logprob,
    )
    if not found.loss.requires_grad:
        return found
    found.loss.backward()
    loss = _WithGradients.apply(found.loss.detach(), hidden, weight, hidden_leaf.grad, weight_leaf.grad)
    return found._replace(loss=loss)


class _WithGradients(torch.autograd.Function):
    """(loss, hidden, weight, their gradients) -> loss, whose backward has nothing left to compute."""

    @staticmethod
    def forward(
        ctx: Any,
        loss: Tensor,
        hidden: Tensor,
        weight: Tensor,
        grad_hidden: Tensor | None,
        grad_weight: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(grad_hidden, grad_weight)
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (None if gradient is None else gradient * grad for gradient in ctx.saved_tensors)
        return None, *scaled, None, None


def _loss_targets(targets: Tensor, mask: Tensor) -> Tensor:
    """Targets of the loss tokens, IGNORED elsewhere."""
    if targets.shape != mask.shape or targets.dtype != torch.int64:
        raise ValueError(f"expected targets int64 [{len(mask)}], found {targets.dtype} {list(targets.shape)}")
    if (mask & (targets == IGNORED)).any():
        raise ValueError(f"expected a target for each loss token, found {IGNORED}: leave it out of the mask")
    return targets.where(mask, IGNORED)
