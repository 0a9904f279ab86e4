"""Token losses of policy optimisation, summed: in plain torch, and in Triton with a closed-form gradient."""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from cascade_rl.kernels.parts.vocabulary import check_one_device
from cascade_rl.kernels.policy_objective import Importance, KlEstimator, PolicyObjective
from cascade_rl.kernels.runtime.launch import launch, takes_triton_path

_MAX_LOG_RATIO = 20.0  # exp(20) is far outside any sane ratio and far inside float32 (miles#1363)


def policy_loss(
    logprob: Tensor, objective: PolicyObjective, values: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss summed over tokens, a scalar differentiable by `logprob`, and the sums behind the metrics.

    logprob  [tokens] float32 (float64 on the torch path), of the policy in training; all are loss tokens
    values   [tokens] float each, without gradient: the names in `objective.reads`, and for "gspo" also
             "sequence_log_ratio", the mean of log p - old log p over the loss tokens of the token's sequence. Other
             names are not read

    The sums are scalars without gradient, of shares times
    importance_weight     w
    importance_corrected  1 for tokens whose w is not v
    reference_kl          the KL estimate; only with a KL term
    clip_fraction         1 for tokens whose gradient (with "cispo": weight) was clipped; not for "reinforce"

    Raises ValueError for a wrong shape, dtype or device, or a missing value.
    """
    needed = (*objective.reads, *["sequence_log_ratio"] * (objective.surrogate == "gspo"))
    _check(logprob, {name: values.get(name) for name in needed})
    inputs = [values[name].detach().to(logprob.dtype) if name in needed else logprob.detach() for name in _INPUTS]
    path = _TritonPath.apply if takes_triton_path(logprob) else _torch_path
    loss, sums = path(objective, logprob, *inputs)
    present = (True, True, objective.kl_coefficient > 0, objective.clips)
    return loss, {name: total.detach() for name, total, has in zip(_SUMS, sums, present, strict=True) if has}


_INPUTS = ("advantage", "share", "old_logprob", "rollout_logprob", "reference_logprob", "sequence_log_ratio")
_SUMS = ("importance_weight", "importance_corrected", "reference_kl", "clip_fraction")


def importance_weight(log_ratio: Tensor, importance: Importance, low: float, high: float) -> tuple[Tensor, Tensor]:
    """w, and whether it differs from exp(log_ratio); both in the shape of log_ratio. See `PolicyObjective`."""
    if importance == "off":
        return torch.ones_like(log_ratio), torch.zeros_like(log_ratio, dtype=torch.bool)
    ratio = log_ratio.clamp(max=_MAX_LOG_RATIO).exp()
    inside = (ratio >= low) & (ratio <= high)
    weight = ratio.where(inside, 0) if importance == "masked" else ratio.clamp(max=high)
    return weight, weight != ratio


def kl_estimate(d: Tensor, estimator: KlEstimator) -> Tensor:
    """KL(p || q) estimated from d = log q - log p of samples from p. d is clamped to +-20; no gradient beyond."""
    d = d.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    if estimator == "k1":
        return -d
    if estimator == "k2":
        return d * d / 2
    return d.expm1() - d


def _torch_path(
    objective: PolicyObjective,
    logprob: Tensor,
    advantage: Tensor,
    share: Tensor,
    old: Tensor,
    rollout: Tensor,
    reference: Tensor,
    sequence_log_ratio: Tensor,
) -> tuple[Tensor, list[Tensor]]:
    """The loss, and the sums in the order of _SUMS."""
    band = (objective.importance, objective.importance_low, objective.importance_high)
    weight, corrected = importance_weight(old - rollout, *band)
    log_ratio = logprob - old
    if objective.surrogate == "gspo":
        log_ratio = sequence_log_ratio + (logprob - logprob.detach())
    surrogate, clipped = _surrogate(objective, logprob, weight * advantage, log_ratio)
    loss, kl = -(share * surrogate).sum(), logprob.new_zeros(())
    if objective.kl_coefficient:
        kl = (share * kl_estimate(reference - logprob, objective.kl_estimator)).sum()
        loss = loss + objective.kl_coefficient * kl
    return loss, [(share * weight).sum(), (share * corrected).sum(), kl, (share * clipped).sum()]


def _surrogate(
    objective: PolicyObjective, logprob: Tensor, advantage: Tensor, log_ratio: Tensor
) -> tuple[Tensor, Tensor]:
    """S, and whether its gradient was clipped away (for cispo: its weight clipped)."""
    if objective.surrogate == "reinforce":
        return advantage * logprob, torch.zeros_like(logprob, dtype=torch.bool)
    ratio = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    inside = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    if objective.surrogate == "cispo":
        return inside.detach() * advantage * logprob, inside != ratio
    surrogate = torch.minimum(ratio * advantage, inside * advantage)
    clipped = inside * advantage < ratio * advantage
    if objective.dual_clip is not None:
        floor = torch.where(advantage < 0, objective.dual_clip * advantage, -torch.inf)
        clipped = clipped | (surrogate < floor)
        surrogate = torch.where(surrogate < floor, floor, surrogate)
    return surrogate, clipped


class _TritonPath(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, objective: PolicyObjective, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        logprob, advantage, share, old, rollout, reference, sequence_log_ratio = (x.contiguous() for x in tensors)
        tokens = len(logprob)
        gradient = logprob.new_empty(tokens)
        sums = logprob.new_empty(triton.cdiv(tokens, _BLOCK), 1 + len(_SUMS))
        if tokens:
            launch(
                token_losses,
                (len(sums),),
                logprob.device,
                logprob_ptr=logprob,
                advantage_ptr=advantage,
                share_ptr=share,
                old_ptr=old,
                rollout_ptr=rollout,
                reference_ptr=reference,
                sequence_log_ratio_ptr=sequence_log_ratio,
                gradient_ptr=gradient,
                sums_ptr=sums,
                tokens=tokens,
                clip_low=1 - objective.clip_low,
                clip_high=1 + objective.clip_high,
                dual_clip=objective.dual_clip or 0.0,
                importance_low=objective.importance_low,
                importance_high=objective.importance_high,
                kl_coefficient=objective.kl_coefficient,
                SURROGATE=objective.surrogate,
                DUAL=objective.dual_clip is not None,
                IMPORTANCE=objective.importance,
                KL=objective.kl_estimator if objective.kl_coefficient else "off",
                BLOCK=_BLOCK,
                warps=4,
            )
        ctx.save_for_backward(gradient)
        total = sums.sum(0)
        loss, rest = total[0], total[1:]
        ctx.mark_non_differentiable(rest)
        return loss, rest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return None, gradient * grad_loss, *[None] * len(_INPUTS)


_BLOCK = 1024
_LOG2_E = tl.constexpr(1.4426950408889634)
_BOUND = tl.constexpr(_MAX_LOG_RATIO)


@triton.jit
def exp(x):
    return tl.exp2(x * _LOG2_E)


@triton.jit(do_not_specialize=["tokens"])
def token_losses(
    logprob_ptr,  # [tokens] float32, and so are the next six
    advantage_ptr,
    share_ptr,
    old_ptr,
    rollout_ptr,  # read unless IMPORTANCE is "off"
    reference_ptr,  # read unless KL is "off"
    sequence_log_ratio_ptr,  # read if SURROGATE is "gspo"
    gradient_ptr,  # [tokens] out, d loss / d logprob
    sums_ptr,  # [blocks, 5] out: loss, weight, corrected, KL, clipped
    tokens,
    clip_low,
    clip_high,
    dual_clip,
    importance_low,
    importance_high,
    kl_coefficient,
    SURROGATE: tl.constexpr,
    DUAL: tl.constexpr,
    IMPORTANCE: tl.constexpr,
    KL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = token < tokens
    logprob = tl.load(logprob_ptr + token, mask=real, other=0.0)
    advantage = tl.load(advantage_ptr + token, mask=real, other=0.0)
    share = tl.load(share_ptr + token, mask=real, other=0.0)
    old = tl.load(old_ptr + token, mask=real, other=0.0)
    log_ratio = logprob - old
    if SURROGATE == "gspo":
        log_ratio = tl.load(sequence_log_ratio_ptr + token, mask=real, other=0.0)
    weight = tl.full((BLOCK,), 1.0, tl.float32)
    corrected = real & False
    if IMPORTANCE != "off":
        log_importance = old - tl.load(rollout_ptr + token, mask=real, other=0.0)
        weight, corrected = importance_at(log_importance, importance_low, importance_high, IMPORTANCE)
    surrogate, slope, clipped = surrogate_at(
        logprob, weight * advantage, log_ratio, clip_low, clip_high, dual_clip, SURROGATE, DUAL
    )
    loss = -surrogate
    gradient = -slope
    kl = tl.zeros((BLOCK,), tl.float32)
    if KL != "off":
        d = tl.load(reference_ptr + token, mask=real, other=0.0) - logprob
        kl, kl_slope = kl_at(d, KL)
        loss += kl_coefficient * kl
        gradient += kl_coefficient * kl_slope

    tl.store(gradient_ptr + token, share * gradient, mask=real)
    out = sums_ptr + tl.program_id(0) * 5
    tl.store(out, tl.sum(tl.where(real, share * loss, 0.0), 0))
    tl.store(out + 1, tl.sum(tl.where(real, share * weight, 0.0), 0))
    tl.store(out + 2, tl.sum(tl.where(real & corrected, share, 0.0), 0))
    tl.store(out + 3, tl.sum(tl.where(real, share * kl, 0.0), 0))
    tl.store(out + 4, tl.sum(tl.where(real & clipped, share, 0.0), 0))


@triton.jit
def surrogate_at(
    logprob, advantage, log_ratio, clip_low, clip_high, dual_clip, SURROGATE: tl.constexpr, DUAL: tl.constexpr
):
    """S, its slope d S / d logprob, and where it was clipped. A ratio clamped at the bound has slope 0."""
    ratio = exp(tl.minimum(tl.maximum(log_ratio, -_BOUND), _BOUND))
    inside = tl.minimum(tl.maximum(ratio, clip_low), clip_high)
    if SURROGATE == "reinforce":
        surrogate = advantage * logprob
        slope = advantage
        clipped = (ratio > 0) & False
    elif SURROGATE == "cispo":
        slope = inside * advantage
        surrogate = slope * logprob
        clipped = inside != ratio
    else:
        clipped = inside * advantage < ratio * advantage
        surrogate = tl.where(clipped, inside, ratio) * advantage
        if DUAL:
            floor = dual_clip * advantage
            cut = (advantage < 0) & (surrogate < floor)
            surrogate = tl.where(cut, floor, surrogate)
            clipped = clipped | cut
        slope = tl.where(clipped | (tl.abs(log_ratio) > _BOUND), 0.0, ratio * advantage)
    return surrogate, slope, clipped


@triton.jit
def importance_at(log_importance, low, high, IMPORTANCE: tl.constexpr):
    """w, and where it differs from the measured ratio v."""
    uncorrected = exp(tl.minimum(log_importance, _BOUND))
    if IMPORTANCE == "truncated":
        weight = tl.minimum(uncorrected, high)
    else:
        weight = tl.where((uncorrected >= low) & (uncorrected <= high), uncorrected, 0.0)
    return weight, weight != uncorrected


@triton.jit
def kl_at(log_ratio, KL: tl.constexpr):
    """The KL estimate and its slope by logprob, which is 0 where the log ratio was clamped."""
    d = tl.minimum(tl.maximum(log_ratio, -_BOUND), _BOUND)
    if KL == "k1":
        kl = -d
        slope = tl.full(d.shape, 1.0, tl.float32)
    elif KL == "k2":
        kl = d * d / 2
        slope = -d
    else:
        # exp(d) - 1 cancels near 0; its series is accurate to float32 there
        tiny = tl.abs(d) < 1e-2
        expm1 = tl.where(tiny, d * (1 + d * (0.5 + d * (1 / 6 + d / 24))), exp(d) - 1)
        kl = tl.where(tiny, d * d * (0.5 + d * (1 / 6 + d / 24)), expm1 - d)
        slope = -expm1
    return kl, tl.where(tl.abs(log_ratio) <= _BOUND, slope, 0.0)


def _check(logprob: Tensor, values: Mapping[str, Tensor | None]) -> None:
    if logprob.dim() != 1 or logprob.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected logprob float32 [tokens], found {logprob.dtype} {list(logprob.shape)}")
    for name, value in values.items():
        if value is None:
            raise ValueError(f"the objective needs {name}, found none")
        if value.shape != logprob.shape:
            raise ValueError(f"expected {name} [{len(logprob)}], found {list(value.shape)}")
    check_one_device(logprob=logprob, **values)
