"""Log-probs of chosen tokens and the entropy, from hidden states and head weight, without a [tokens, vocab] tensor."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from cascade_rl.kernels.parts import linear_logprob_torch, linear_logprob_triton
from cascade_rl.kernels.parts.vocabulary import VocabularyShard, check_ids, check_one_device, per_token
from cascade_rl.kernels.runtime.launch import takes_triton_path


class LinearLogprob(NamedTuple):
    """All in nats, float32 (float64 for float64 inputs), differentiable."""

    logprob: Tensor  # [tokens], of the targets
    entropy: Tensor  # [tokens]
    log_sum_exp: Tensor  # [tokens], lse of the logits divided by the temperature
    candidate_logprob: Tensor  # [tokens, candidates]


def fused_linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: Tensor | float = 1.0,
    *,
    vocab_size: int,
    candidates: Tensor | None = None,
    tp_group: dist.ProcessGroup | None = None,
    chunk_tokens: int = 1024,
    saved_bytes: int | None = None,
) -> LinearLogprob:
    """The log-prob of each target and the entropy, of softmax(hidden @ weight.T / temperature).

    hidden       [tokens, hidden] float, the same on every rank of tp_group
    weight       [padded vocab / tp, hidden] float, this rank's rows of the head
    targets      [tokens] int64, ids of the whole vocabulary. IGNORED (-100) gives 0 in every output and no gradient;
                 the row of `hidden` of such a token may hold anything
    temperature  [tokens] float, or one number; positive
    vocab_size   columns from here on are padding and are left out
    candidates   [tokens, candidates] int64: further ids of each token whose log-prob is wanted, e.g. a teacher's top k
    chunk_tokens torch path only: memory for logits is [chunk_tokens, vocab / tp]
    saved_bytes  Triton path only: the most bytes of exponentials, 2 per token and column (4 for float32), to keep from
                 forward to backward, which then recomputes fewer columns. 0 keeps none; None takes the value of
                 `configs.py`. Nothing is kept if no gradient is needed. The outputs have the same bits for any value;
                 the gradients do not. The torch path ignores it and recomputes all columns

    Statistics are float32 for any input dtype and come from float32 products: no logit is rounded. On the Triton path
    the gradient of the logits is rounded to scaled float16 (`slabs.py`). Under tensor parallelism one all-gather merges
    the ranks in vocabulary order. Backward returns the gradient of this rank's weight rows, and the gradient of hidden
    already summed over tp_group in float32: do not wrap hidden in copy_to_tensor_model_parallel_region, and under
    sequence parallelism gather it with tensor_parallel_output_grad=False. Ignored tokens cost nothing. Tokens with zero
    gradient cost nothing in backward.

    Tensors on a GPU take the Triton path. There a token has the same bits in any batch and, if weight shards are whole
    column groups (`configs.py`), for any number of tensor-parallel ranks. Other shards are as exact, but their last
    bits depend on that number.

    Raises ValueError for a shape, dtype, device, temperature or id out of range.
    """
    shard = VocabularyShard.of(weight, vocab_size, tp_group)
    chosen = _checked(hidden, weight, targets, temperature, candidates, vocab_size, chunk_tokens)
    if saved_bytes is not None and saved_bytes < 0:
        raise ValueError(f"saved_bytes must be 0 or more, or None, found {saved_bytes}")
    tokens = len(targets)
    inverse_temperature = per_token("temperature", temperature, tokens, hidden).reciprocal()
    if takes_triton_path(hidden):
        apply = linear_logprob_triton.LinearLogprobFunction.apply
        differentiated = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
        budget = saved_bytes if differentiated else 0
        outputs = apply(hidden, weight, chosen, inverse_temperature, shard, budget)
    else:
        apply = linear_logprob_torch.LinearLogprobFunction.apply
        outputs = apply(hidden, weight, chosen, inverse_temperature, shard, chunk_tokens)
    logprob, entropy, log_sum_exp = outputs
    return LinearLogprob(logprob[:, 0], entropy, log_sum_exp, logprob[:, 1:])


def _checked(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: Tensor | float,
    candidates: Tensor | None,
    vocab_size: int,
    chunk_tokens: int,
) -> Tensor:
    """Checks the arguments; returns targets and candidates side by side, [tokens, 1 + candidates]."""
    check_operands(hidden, weight)
    check_one_device(hidden=hidden, targets=targets, candidates=candidates)
    if targets.shape != hidden.shape[:1] or targets.dtype != torch.int64:
        raise ValueError(f"expected targets int64 [{hidden.shape[0]}], found {targets.dtype} {list(targets.shape)}")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, found {chunk_tokens}")
    if not torch.as_tensor(temperature > 0).all():
        raise ValueError("temperature must be positive everywhere, found one that is not")
    check_ids("targets", targets, vocab_size)
    if candidates is None:
        return targets[:, None]
    if candidates.dim() != 2 or len(candidates) != len(targets) or candidates.dtype != torch.int64:
        raise ValueError(
            f"expected candidates int64 [{len(targets)}, candidates], found {candidates.dtype} {list(candidates.shape)}"
        )
    check_ids("candidates", candidates, vocab_size)
    return torch.cat([targets[:, None], candidates], 1)


def check_operands(hidden: Tensor, weight: Tensor) -> None:
    """Raises ValueError unless hidden [tokens, hidden] and weight [vocab / tp, hidden] fit each other."""
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            "expected hidden [tokens, hidden] and weight [vocab / tp, hidden], "
            f"found {list(hidden.shape)} and {list(weight.shape)}"
        )
    if not hidden.is_floating_point() or hidden.dtype != weight.dtype:
        raise ValueError(f"expected hidden and weight of one float dtype, found {hidden.dtype} and {weight.dtype}")
    check_one_device(hidden=hidden, weight=weight)
