"""`fused_linear_logprob` in plain torch.

It processes tokens in chunks and recomputes logits in backward. Memory for logits is therefore
[chunk_tokens, vocab / tp] for a batch of any length.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cascade_rl.kernels.parts.vocabulary import IGNORED, VocabularyShard

# Finite values instead of minus infinity, because inf - inf and 0 * inf are NaN. TE and Liger return NaN for a block
# without a finite logit. verl and Megatron start the maximum at 0, which fails for logits near -200.
_LOWEST_LOGIT = -1e30
_LOWEST_LOG_RATIO = -1e4


class LinearLogprobFunction(torch.autograd.Function):
    """(hidden, weight, chosen [tokens, ids], ...) -> logprob [tokens, ids], entropy, log_sum_exp [tokens]."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        chosen: Tensor,
        inverse_temperature: Tensor,
        shard: VocabularyShard,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        head = weight[: shard.columns].to(inverse_temperature.dtype)
        statistics = _empty_statistics(chosen, inverse_temperature)
        if shard.columns:
            local = shard.local(chosen)
            for chunk in _chunks(len(chosen), chunk_tokens):
                logits = (hidden[chunk] * inverse_temperature[chunk, None]) @ head.T
                _local_statistics(logits, local[chunk], out=statistics[:, chunk])
        logprob, entropy, log_sum_exp = _merge(shard.gather(statistics))
        ctx.save_for_backward(hidden, weight, chosen, inverse_temperature, log_sum_exp, entropy)
        ctx.shard, ctx.chunk_tokens = shard, chunk_tokens
        ctx.set_materialize_grads(False)
        ignored = chosen[:, 0] == IGNORED
        no_logprob = ignored[:, None] | (chosen == IGNORED)
        return (
            logprob.T.masked_fill(no_logprob, 0),
            entropy.masked_fill(ignored, 0),
            log_sum_exp.masked_fill(ignored, 0),
        )

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprob: Tensor | None, grad_entropy: Tensor | None, grad_log_sum_exp: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, chosen, inverse_temperature, log_sum_exp, entropy = ctx.saved_tensors
        shard: VocabularyShard = ctx.shard
        head = weight[: shard.columns].to(log_sum_exp.dtype)
        grad_hidden = torch.zeros_like(hidden, dtype=log_sum_exp.dtype) if ctx.needs_input_grad[0] else None
        # Stored transposed: [hidden, rows] @ [rows, vocab] is the faster layout of this product on a CPU.
        grad_weight = log_sum_exp.new_zeros(weight.shape[::-1]).T if ctx.needs_input_grad[1] else None
        grad_logprob, active = arriving(chosen, log_sum_exp.dtype, grad_logprob, grad_entropy, grad_log_sum_exp)
        pull = grad_logprob.sum(1)  # each column's logit is pulled down by this times its probability
        if grad_log_sum_exp is not None:
            pull = pull - grad_log_sum_exp

        for rows in active.split(ctx.chunk_tokens):
            scale = inverse_temperature[rows, None]
            scaled = hidden.index_select(0, rows) * scale  # [rows, hidden]
            log_p = scaled @ head.T  # [rows, vocab / tp], still logits
            local = shard.local(chosen[rows])
            log_p.sub_(log_sum_exp[rows, None])
            g_entropy = None if grad_entropy is None else grad_entropy[rows, None]
            grad_logits = _grad_logits(log_p, entropy[rows, None], pull[rows, None], g_entropy)
            owned, which = (local >= 0).nonzero(as_tuple=True)
            grad_logits.index_put_((owned, local[owned, which]), grad_logprob[rows][owned, which], accumulate=True)
            if grad_hidden is not None:
                grad_hidden.index_copy_(0, rows, (grad_logits @ head).mul_(scale))
            if grad_weight is not None:
                grad_weight[: shard.columns].T.addmm_(scaled.T, grad_logits)

        if grad_hidden is not None:
            if (work := shard.sum(grad_hidden)) is not None:
                work.wait()
            grad_hidden = grad_hidden.to(hidden.dtype)
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None


def arriving(
    chosen: Tensor, dtype: torch.dtype, grad_logprob: Tensor | None, *grads: Tensor | None
) -> tuple[Tensor, Tensor]:
    """grad_logprob [tokens, ids], zero for IGNORED ids or if it is None; and the rows with any incoming gradient.

    `grads` are [tokens] each. Ignored rows are never among the rows returned.
    """
    if grad_logprob is None:
        grad_logprob = torch.zeros_like(chosen, dtype=dtype)
    grad_logprob = grad_logprob.masked_fill(chosen == IGNORED, 0)
    active = (grad_logprob != 0).any(1)
    for grad in grads:
        if grad is not None:
            active = active | (grad != 0)
    return grad_logprob, (active & (chosen[:, 0] != IGNORED)).nonzero()[:, 0]


def _empty_statistics(chosen: Tensor, like: Tensor) -> Tensor:
    """What a rank with only padding contributes: maximum, total, weighted total, a logit per chosen id."""
    chosen_logits = [[-torch.inf]] * chosen.shape[1]
    return like.new_tensor([[_LOWEST_LOGIT], [0.0], [0.0], *chosen_logits]).repeat(1, len(chosen))


def _local_statistics(logits: Tensor, local: Tensor, out: Tensor) -> None:
    """Statistics of one chunk over this rank's columns, relative to their maximum m. Overwrites logits.

    out [3 + ids, chunk]: m, sum exp(z - m), sum exp(z - m) (z - m), z - m of each chosen id that this rank owns.
    """
    chosen = logits.gather(1, local.clamp_min(0))
    maximum = logits.amax(1, keepdim=True).clamp_min_(_LOWEST_LOGIT)
    out[0] = maximum[:, 0]
    out[3:] = chosen.sub_(maximum).masked_fill_(local < 0, -torch.inf).T
    shifted = logits.sub_(maximum).clamp_min_(_LOWEST_LOG_RATIO)
    exponentials = shifted.exp()
    out[1] = exponentials.sum(1)
    out[2] = shifted.mul_(exponentials).sum(1)


def _merge(statistics: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[tp, 3 + ids, tokens] -> log-prob of the chosen ids [ids, tokens], entropy and log-sum-exp [tokens]."""
    local_maximum, local_total, local_weighted = statistics[:, :3].unbind(1)
    maximum = local_maximum.amax(0)
    shift = local_maximum - maximum
    rescale = shift.exp()
    total = (rescale * local_total).sum(0)
    mean = (rescale * (local_weighted + shift * local_total)).sum(0) / total  # of z - maximum
    chosen = (statistics[:, 3:] + shift[:, None]).amax(0)
    log_total = total.log()
    # log_total and -mean are both positive, so nothing cancels in the entropy, for logits of any size.
    return chosen - log_total, log_total - mean, maximum + log_total


def _grad_logits(log_p: Tensor, entropy: Tensor, pull: Tensor, g_entropy: Tensor | None) -> Tensor:
    """dlogits: -p (pull + g_entropy (log p + entropy)), [rows, vocab / tp], without the chosen ids' own terms.

    Overwrites log_p.
    """
    if g_entropy is None:
        return log_p.exp_().mul_(-pull)
    p = log_p.exp()
    return log_p.clamp_min_(_LOWEST_LOG_RATIO).add_(entropy).mul_(-g_entropy).sub_(pull).mul_(p)


def _chunks(tokens: int, chunk_tokens: int) -> Iterator[slice]:
    return (slice(start, start + chunk_tokens) for start in range(0, tokens, chunk_tokens))
