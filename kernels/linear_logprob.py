"""Log-prob and entropy of chosen tokens, straight from hidden states and head weight: the torch path.

The vocabulary may be cut over a tensor-parallel group. Tokens are worked off in chunks and logits are
computed again in backward, so that memory for logits is [chunk_tokens, vocab / tp] however long the batch is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORED = -100

# Finite stand-ins for minus infinity, because inf - inf and 0 * inf are NaN. TE and Liger return NaN for a
# block without a finite logit; verl and Megatron start the maximum at 0, which breaks for logits near -200.
_LOWEST_LOGIT = -1e30
_LOWEST_LOG_RATIO = -1e4


def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: Tensor | float,
    *,
    vocab_size: int,
    tp_group: dist.ProcessGroup | None = None,
    chunk_tokens: int = 1024,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of each distribution, softmax(hidden @ weight.T / temperature).

    hidden       [tokens, hidden] float, the same on every rank of tp_group
    weight       [padded vocab / tp, hidden] float, this rank's rows of the head
    targets      [tokens] int64, ids of the whole vocabulary; IGNORED (-100) gives 0, 0 and no gradient
    temperature  [tokens] float, or one number; positive
    vocab_size   columns from here on are padding and take no part

    Returns logprob and entropy, [tokens] each, both differentiable, in nats. Statistics and outputs are
    float32 for float32, bfloat16 and float16 inputs, float64 for float64 ones.

    Under tensor parallelism one all-gather of 4 numbers a token merges the ranks, in rank order. Backward
    returns the gradient of hidden already summed over tp_group (do not wrap hidden in
    copy_to_tensor_model_parallel_region; under sequence parallelism gather it with
    tensor_parallel_output_grad=False) and the gradient of this rank's weight rows. Tokens whose incoming
    gradient is zero, prompts for instance, cost nothing in backward.

    Raises ValueError for a shape, dtype, temperature or target out of range.
    """
    shard = _Shard.of(weight, vocab_size, tp_group)
    _check_shapes(hidden, weight, targets, temperature)
    _check_values(targets, temperature, vocab_size, chunk_tokens)
    inverse_temperature = _per_token(temperature, hidden).reciprocal()
    return _LinearLogprob.apply(hidden, weight, targets, inverse_temperature, shard, chunk_tokens)


@dataclass(frozen=True)
class _Shard:
    """The columns of the vocabulary that this rank owns: [first, first + columns), padding left out."""

    first: int
    columns: int
    group: dist.ProcessGroup | None

    @classmethod
    def of(cls, weight: Tensor, vocab_size: int, group: dist.ProcessGroup | None) -> "_Shard":
        rows, ranks = weight.shape[0], 1 if group is None else group.size()
        if not 0 < vocab_size <= rows * ranks:
            raise ValueError(
                f"vocab_size must lie in 1..{rows * ranks} ({rows} weight rows on each of {ranks} "
                f"tensor-parallel ranks), found {vocab_size}"
            )
        first = 0 if group is None else group.rank() * rows
        return cls(first, min(max(vocab_size - first, 0), rows), group)

    def owned(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Rows whose target is one of this rank's columns, and those columns."""
        columns = targets - self.first
        rows = ((columns >= 0) & (columns < self.columns)).nonzero()[:, 0]
        return rows, columns[rows]

    def gather(self, statistics: Tensor) -> Tensor:
        """[4, tokens] of each rank, stacked in rank order: [tp, 4, tokens]."""
        if self.group is None:
            return statistics[None]
        gathered = statistics.new_empty(self.group.size() * 4, statistics.shape[1])
        dist.all_gather_single(gathered, statistics, group=self.group)
        return gathered.unflatten(0, (-1, 4))

    def sum(self, tensor: Tensor) -> Tensor:
        if self.group is not None:
            dist.all_reduce(tensor, group=self.group)
        return tensor


class _LinearLogprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        inverse_temperature: Tensor,
        shard: _Shard,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        head = weight[: shard.columns].to(inverse_temperature.dtype)
        statistics = _empty_statistics(inverse_temperature)
        if shard.columns:
            for chunk in _chunks(len(targets), chunk_tokens):
                logits = (hidden[chunk] * inverse_temperature[chunk, None]) @ head.T
                _local_statistics(logits, shard.owned(targets[chunk]), out=statistics[:, chunk])
        logprob, entropy, log_sum_exp = _merge(shard.gather(statistics))
        ctx.save_for_backward(hidden, weight, targets, inverse_temperature, log_sum_exp, entropy)
        ctx.shard, ctx.chunk_tokens = shard, chunk_tokens
        ctx.set_materialize_grads(False)
        ignored = targets == IGNORED
        return logprob.masked_fill(ignored, 0), entropy.masked_fill(ignored, 0)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprob: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, inverse_temperature, log_sum_exp, entropy = ctx.saved_tensors
        shard: _Shard = ctx.shard
        head = weight[: shard.columns].to(log_sum_exp.dtype)
        grad_hidden = torch.zeros_like(hidden, dtype=log_sum_exp.dtype) if ctx.needs_input_grad[0] else None
        # Held transposed: [hidden, rows] @ [rows, vocab] is the faster layout of this product on a CPU.
        grad_weight = log_sum_exp.new_zeros(weight.shape[::-1]).T if ctx.needs_input_grad[1] else None
        if grad_logprob is None:
            grad_logprob = torch.zeros_like(log_sum_exp)

        for rows in _rows_with_gradient(targets, grad_logprob, grad_entropy).split(ctx.chunk_tokens):
            scale = inverse_temperature[rows, None]
            scaled = hidden.index_select(0, rows) * scale  # [rows, hidden]
            log_p = (scaled @ head.T).sub_(log_sum_exp[rows, None])  # [rows, vocab / tp]
            g_logprob = grad_logprob[rows, None]
            g_entropy = None if grad_entropy is None else grad_entropy[rows, None]
            grad_logits = _grad_logits(log_p, entropy[rows, None], g_logprob, g_entropy)
            owned, column = shard.owned(targets[rows])
            grad_logits[owned, column] += g_logprob[owned, 0]
            if grad_hidden is not None:
                grad_hidden.index_copy_(0, rows, (grad_logits @ head).mul_(scale))
            if grad_weight is not None:
                grad_weight[: shard.columns].T.addmm_(scaled.T, grad_logits)

        if grad_hidden is not None:
            grad_hidden = shard.sum(grad_hidden).to(hidden.dtype)
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None


def _empty_statistics(like: Tensor) -> Tensor:
    """What a rank with nothing but padding contributes: maximum, total, weighted total, target logit."""
    return like.new_tensor([[_LOWEST_LOGIT], [0.0], [0.0], [-torch.inf]]).repeat(1, len(like))


def _local_statistics(logits: Tensor, owned: tuple[Tensor, Tensor], out: Tensor) -> None:
    """Statistics of one chunk over this rank's columns, relative to their maximum m; overwrites logits.

    out [4, chunk]: m, sum exp(z - m), sum exp(z - m) (z - m), z_target - m where the target is `owned`.
    """
    maximum = logits.amax(1, keepdim=True).clamp_min_(_LOWEST_LOGIT)
    shifted = logits.sub_(maximum)
    out[0] = maximum[:, 0]
    out[3, owned[0]] = shifted[owned]
    shifted.clamp_min_(_LOWEST_LOG_RATIO)
    exponentials = shifted.exp()
    out[1] = exponentials.sum(1)
    out[2] = shifted.mul_(exponentials).sum(1)


def _merge(statistics: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[tp, 4, tokens] -> log-prob of the target, entropy, log-sum-exp of the logits, [tokens] each."""
    local_maximum, local_total, local_weighted, local_target = statistics.unbind(1)
    maximum = local_maximum.amax(0)
    shift = local_maximum - maximum
    rescale = shift.exp()
    total = (rescale * local_total).sum(0)
    mean = (rescale * (local_weighted + shift * local_total)).sum(0) / total  # of z - maximum
    target = (local_target + shift).amax(0)
    log_total = total.log()
    # log_total and -mean are both positive: nothing cancels in the entropy, however large the logits are.
    return target - log_total, log_total - mean, maximum + log_total


def _grad_logits(log_p: Tensor, entropy: Tensor, g_logprob: Tensor, g_entropy: Tensor | None) -> Tensor:
    """-p (g_logprob + g_entropy (log p + entropy)), [rows, vocab / tp], without the target's own term.

    Overwrites log_p.
    """
    if g_entropy is None:
        return log_p.exp_().mul_(-g_logprob)
    p = log_p.exp()
    return log_p.clamp_min_(_LOWEST_LOG_RATIO).add_(entropy).mul_(-g_entropy).sub_(g_logprob).mul_(p)


def _rows_with_gradient(targets: Tensor, grad_logprob: Tensor, grad_entropy: Tensor | None) -> Tensor:
    active = grad_logprob != 0
    if grad_entropy is not None:
        active |= grad_entropy != 0
    return (active & (targets != IGNORED)).nonzero()[:, 0]


def _chunks(tokens: int, chunk_tokens: int) -> Iterator[slice]:
    return (slice(start, start + chunk_tokens) for start in range(0, tokens, chunk_tokens))


def _per_token(temperature: Tensor | float, hidden: Tensor) -> Tensor:
    """[tokens] in the dtype of the statistics."""
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    if isinstance(temperature, Tensor):
        return temperature.detach().to(dtype)
    return torch.full(hidden.shape[:1], temperature, dtype=dtype, device=hidden.device)


def _check_shapes(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: Tensor | float) -> None:
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            "expected hidden [tokens, hidden] and weight [vocab / tp, hidden], "
            f"found {list(hidden.shape)} and {list(weight.shape)}"
        )
    if not hidden.is_floating_point() or hidden.dtype != weight.dtype:
        raise ValueError(
            f"expected hidden and weight of one float dtype, found {hidden.dtype} and {weight.dtype}"
        )
    if targets.shape != hidden.shape[:1] or targets.dtype != torch.int64:
        raise ValueError(
            f"expected targets int64 [{hidden.shape[0]}], found {targets.dtype} {list(targets.shape)}"
        )
    if isinstance(temperature, Tensor) and temperature.shape != targets.shape:
        raise ValueError(
            f"expected temperature [{hidden.shape[0]}] or a number, found {list(temperature.shape)}"
        )


def _check_values(targets: Tensor, temperature: Tensor | float, vocab_size: int, chunk_tokens: int) -> None:
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, found {chunk_tokens}")
    if not torch.as_tensor(temperature > 0).all():
        raise ValueError("temperature must be positive everywhere, found one that is not")
    wrong = targets[((targets < 0) | (targets >= vocab_size)) & (targets != IGNORED)]
    if wrong.numel():
        raise ValueError(f"targets must lie in 0..{vocab_size - 1} or be {IGNORED}, found {int(wrong[0])}")
