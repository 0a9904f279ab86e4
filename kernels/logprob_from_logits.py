"""Log-prob and entropy of chosen tokens where the logits exist already: vLLM's sampler, a scoring model."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from cascade_rl.kernels.parts.vocabulary import IGNORED, check_ids, check_one_device, per_token
from cascade_rl.kernels.parts.vocabulary_tiles import LOWEST, LOWEST_LOG_RATIO, finite
from cascade_rl.kernels.runtime.launch import config_for, launch, takes_triton_path

_LOWEST_LOGIT, _LOWEST_LOG_RATIO = LOWEST.value, LOWEST_LOG_RATIO.value


class Logprob(NamedTuple):
    """In nats, [tokens], float32 (float64 for float64 logits), differentiable."""

    logprob: Tensor
    entropy: Tensor
    log_sum_exp: Tensor


def logprob_from_logits(
    logits: Tensor,
    targets: Tensor,
    temperature: Tensor | float = 1.0,
    *,
    inplace_backward: bool = False,
    chunk_tokens: int = 256,
) -> Logprob:
    """Of softmax(logits / temperature): the log-prob of each target, the entropy, the log-sum-exp.

    logits            [tokens, vocab] float, rows of any stride, columns next to each other; minus infinity is allowed
                      (a grammar mask), also for whole stretches of columns; padding is left out by a view
    targets           [tokens] int64; IGNORED (-100) gives 0 and no gradient
    temperature       [tokens] float, or one number; positive
    inplace_backward  the gradient overwrites the logits, which nothing else may read after this op's forward; a second
                      backward is then refused by autograd. Saves a [tokens, vocab] tensor.
    chunk_tokens      rows of the torch path in float32 at a time

    Statistics are float32, in one pass over the logits. Raises ValueError for a shape, dtype, stride, temperature or
    target out of range.
    """
    _check(logits, targets, temperature, chunk_tokens)
    inverse_temperature = per_token("temperature", temperature, len(targets), logits).reciprocal()
    path = _TritonPath if takes_triton_path(logits) else _TorchPath(chunk_tokens)
    return Logprob(*_LogprobFromLogits.apply(logits, targets, inverse_temperature, path, inplace_backward))


class _LogprobFromLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, inverse_temperature: Tensor, path: Any, inplace: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        outputs = inverse_temperature.new_empty(3, len(targets))
        path.forward(logits, targets, inverse_temperature, outputs)
        logprob, entropy, log_sum_exp = outputs
        ctx.save_for_backward(logits, targets, inverse_temperature, entropy, log_sum_exp)
        ctx.path, ctx.inplace = path, inplace
        ctx.set_materialize_grads(False)
        return logprob, entropy, log_sum_exp

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, targets, inverse_temperature, entropy, log_sum_exp = ctx.saved_tensors
        g_logprob, g_entropy, g_log_sum_exp = (
            torch.zeros_like(log_sum_exp) if grad is None else grad * inverse_temperature for grad in grads
        )
        uniform = g_log_sum_exp - g_logprob - g_entropy * entropy
        out = logits if ctx.inplace else torch.empty_like(logits)
        ctx.path.backward(logits, targets, inverse_temperature, log_sum_exp, uniform, -g_entropy, g_logprob, out)
        if ctx.inplace:
            torch.autograd.graph.increment_version(logits)
        return out, None, None, None, None


class _TorchPath:
    def __init__(self, chunk_tokens: int):
        self.chunk_tokens = chunk_tokens

    def chunks(self, tokens: int) -> Iterator[slice]:
        return (slice(start, start + self.chunk_tokens) for start in range(0, tokens, self.chunk_tokens))

    def forward(self, logits: Tensor, targets: Tensor, inverse_temperature: Tensor, outputs: Tensor) -> None:
        for rows in self.chunks(len(targets)):
            z = (logits[rows].to(outputs.dtype) * inverse_temperature[rows, None]).clamp_min_(_LOWEST_LOGIT)
            maximum = z.amax(1, keepdim=True)
            shifted = z.sub_(maximum)
            target = shifted.gather(1, targets[rows, None].clamp_min(0))[:, 0]
            exponential = shifted.clamp_min_(_LOWEST_LOG_RATIO).exp()
            total = exponential.sum(1)
            outputs[0, rows] = target - total.log()
            outputs[1, rows] = total.log() - exponential.mul_(shifted).sum(1) / total
            outputs[2, rows] = maximum[:, 0] + total.log()
        outputs.masked_fill_(targets == IGNORED, 0)

    def backward(
        self,
        logits: Tensor,
        targets: Tensor,
        inverse_temperature: Tensor,
        log_sum_exp: Tensor,
        uniform: Tensor,
        slope: Tensor,
        spike: Tensor,
        out: Tensor,
    ) -> None:
        for rows in self.chunks(len(targets)):
            ignored = targets[rows, None] == IGNORED
            log_p = logits[rows].to(uniform.dtype) * inverse_temperature[rows, None] - log_sum_exp[rows, None]
            log_p = log_p.clamp_min_(_LOWEST_LOG_RATIO)
            gradient = log_p.exp() * (uniform[rows, None] + slope[rows, None] * log_p)
            gradient.scatter_add_(1, targets[rows, None].clamp_min(0), spike[rows, None])
            out[rows] = gradient.masked_fill_(ignored, 0).to(out.dtype)


class _TritonPath:
    @staticmethod
    def forward(logits: Tensor, targets: Tensor, inverse_temperature: Tensor, outputs: Tensor) -> None:
        tokens, columns = logits.shape
        if not tokens:
            return
        config = config_for(logits.device)
        launch(
            row_statistics,
            (tokens,),
            logits.device,
            logits_ptr=logits,
            target_ptr=targets,
            inverse_temperature_ptr=inverse_temperature,
            outputs_ptr=outputs,
            tokens=tokens,
            columns=columns,
            stride=logits.stride(0),
            BN=config.row_columns,
            warps=config.row_warps,
        )

    @staticmethod
    def backward(
        logits: Tensor,
        targets: Tensor,
        inverse_temperature: Tensor,
        log_sum_exp: Tensor,
        uniform: Tensor,
        slope: Tensor,
        spike: Tensor,
        out: Tensor,
    ) -> None:
        tokens, columns = logits.shape
        if not tokens:
            return
        config = config_for(logits.device)
        launch(
            row_gradients,
            (tokens, triton.cdiv(columns, config.row_columns)),
            logits.device,
            logits_ptr=logits,
            gradients_ptr=out,
            target_ptr=targets,
            inverse_temperature_ptr=inverse_temperature,
            log_sum_exp_ptr=log_sum_exp,
            uniform_ptr=uniform,
            slope_ptr=slope,
            spike_ptr=spike,
            columns=columns,
            stride=logits.stride(0),
            out_stride=out.stride(0),
            BN=config.row_columns,
            warps=config.row_warps,
        )


_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)
_NO_TARGET = tl.constexpr(IGNORED)


@triton.jit(do_not_specialize=["tokens", "columns"])
def row_statistics(
    logits_ptr,  # [tokens, columns], row stride `stride`
    target_ptr,  # [tokens]
    inverse_temperature_ptr,  # [tokens]
    outputs_ptr,  # [3, tokens] out: log-prob, entropy, log-sum-exp
    tokens,
    columns,
    stride,
    BN: tl.constexpr,
):
    """One row: a running maximum and sums per lane, and one reduction over lanes at the end."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride
    scale = tl.load(inverse_temperature_ptr + row) * _LOG2_E
    top = tl.full((BN,), LOWEST, tl.float32)
    total = tl.zeros((BN,), tl.float32)
    weighted = tl.zeros((BN,), tl.float32)  # sum 2**(z - top) (z - top)
    for start in tl.range(0, columns, BN):
        column = start + tl.arange(0, BN)
        z = tl.load(row_ptr + column, mask=column < columns, other=float("-inf"), eviction_policy="evict_first")
        z = finite(z.to(tl.float32) * scale)
        new_top = tl.maximum(top, z)
        old = tl.exp2(top - new_top)
        new = tl.exp2(z - new_top)
        weighted = old * (weighted + (top - new_top) * total) + new * (z - new_top)
        total = old * total + new
        top = new_top
    k = tl.max(top, 0)
    shift = top - k
    rescale = tl.exp2(shift)
    weighted = tl.sum(rescale * (weighted + shift * total), 0)
    total = tl.sum(rescale * total, 0)
    log_total = tl.log2(total)
    target = tl.load(target_ptr + row)
    seen = target != _NO_TARGET
    z_target = finite(tl.load(row_ptr + tl.where(seen, target, 0)).to(tl.float32) * scale)
    out = outputs_ptr + row
    tl.store(out, tl.where(seen, (z_target - k - log_total) * _LN_2, 0.0))
    tl.store(out + tokens, tl.where(seen, (log_total - weighted / total) * _LN_2, 0.0))
    tl.store(out + 2 * tokens.to(tl.int64), tl.where(seen, (k + log_total) * _LN_2, 0.0))


@triton.jit(do_not_specialize=["columns"])
def row_gradients(
    logits_ptr,  # [tokens, columns], row stride `stride`
    gradients_ptr,  # out, may be the logits themselves: each element is read before it is written
    target_ptr,  # [tokens], and so are all below
    inverse_temperature_ptr,
    log_sum_exp_ptr,
    uniform_ptr,
    slope_ptr,
    spike_ptr,
    columns,
    stride,
    out_stride,
    BN: tl.constexpr,
):
    """p (uniform + slope log p), and `spike` more at the target."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = column < columns
    target = tl.load(target_ptr + row)
    z = tl.load(logits_ptr + row * stride + column, mask=inside, other=0.0, eviction_policy="evict_first")
    log_p = z.to(tl.float32) * tl.load(inverse_temperature_ptr + row) - tl.load(log_sum_exp_ptr + row)
    log_p = tl.where(log_p < LOWEST_LOG_RATIO, LOWEST_LOG_RATIO, log_p)
    gradient = tl.exp2(log_p * _LOG2_E) * (tl.load(uniform_ptr + row) + tl.load(slope_ptr + row) * log_p)
    gradient += tl.where(column == target, tl.load(spike_ptr + row), 0.0)
    gradient = tl.where(target != _NO_TARGET, gradient, 0.0)
    out = gradients_ptr + row * out_stride + column
    tl.store(out, gradient.to(gradients_ptr.dtype.element_ty), mask=inside)


def _check(logits: Tensor, targets: Tensor, temperature: Tensor | float, chunk_tokens: int) -> None:
    if logits.dim() != 2 or not logits.is_floating_point() or not logits.shape[1]:
        raise ValueError(f"expected logits float [tokens, vocab], found {logits.dtype} {list(logits.shape)}")
    if logits.stride(1) != 1 and logits.shape[1] > 1:
        raise ValueError(f"expected the columns of logits next to each other, found stride {logits.stride(1)}")
    if targets.shape != logits.shape[:1] or targets.dtype != torch.int64:
        raise ValueError(f"expected targets int64 [{len(logits)}], found {targets.dtype} {list(targets.shape)}")
    check_one_device(logits=logits, targets=targets)
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, found {chunk_tokens}")
    if not torch.as_tensor(temperature > 0).all():
        raise ValueError("temperature must be positive everywhere, found one that is not")
    check_ids("targets", targets, logits.shape[1])
