"""The token losses of policy optimisation, with their gradient in closed form and sums in a fixed order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from cascade_rl.kernels.parts.vocabulary import check_one_device
from cascade_rl.kernels.runtime.launch import launch, takes_triton_path

Surrogate = Literal["reinforce", "clip", "cispo", "gspo"]
Importance = Literal["off", "truncated", "masked"]
KlEstimator = Literal["off", "k1", "k2", "k3"]

SUMS = ("loss", "ratio", "clipped", "importance_weight", "importance_corrected", "reference_kl")

_MAX_LOG_RATIO = 20.0  # exp(20) is far outside any sane ratio and far inside float32 (miles#1363)


@dataclass(frozen=True)
class PolicyObjective:
    """What is minimised: -w S + kl_coefficient KL, of each loss token.

    surrogate   S, with A the advantage and rho = exp(log p - old log p):
                "reinforce"  A log p, one update per batch
                "clip"       min(rho A, clip(rho, 1 - low, 1 + high) A), PPO; with `dual_clip` c not below c A where
                             A < 0
                "cispo"      sg[clip(rho, 1 - low, 1 + high)] A log p (MiniMax-M1, Eq. 4)
                "gspo"       "clip" with the sequence's rho, exp(mean log ratio), and each token's own gradient
                             (GSPO-token, Eq. 13-17)
    importance  w, from v = exp(old log p - rollout log p), or of log p itself where there is no old log p:
                "truncated"  min(v, importance_high); "masked" v, but 0 outside [importance_low, importance_high]
                             (IcePop; MOPD with 0.5 and 2.0)
    kl          of policy and reference, d = reference log p - log p: "k1" -d, "k2" d^2 / 2, "k3" exp(d) - 1 - d

    Raises ValueError for an unknown name or a bound on the wrong side of 1.
    """

    surrogate: Surrogate
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    importance: Importance = "off"
    importance_low: float = 0.5
    importance_high: float = 2.0
    kl: KlEstimator = "off"
    kl_coefficient: float = 0.0

    def __post_init__(self) -> None:
        for name, known in (("surrogate", Surrogate), ("importance", Importance), ("kl", KlEstimator)):
            if getattr(self, name) not in get_args(known):
                raise ValueError(f"{name} must be one of {get_args(known)}, found {getattr(self, name)!r}")
        if not (0 <= self.clip_low <= 1 and self.clip_high >= 0):
            raise ValueError(f"expected 0 <= clip_low <= 1 and clip_high >= 0, found {self.clip_low}, {self.clip_high}")
        if not 0 <= self.importance_low <= 1 <= self.importance_high:
            raise ValueError(
                "expected 0 <= importance_low <= 1 <= importance_high, "
                f"found {self.importance_low}, {self.importance_high}"
            )
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be above 1, found {self.dual_clip}")
        if self.dual_clip is not None and self.surrogate not in ("clip", "gspo"):
            raise ValueError(f"dual_clip belongs to the surrogates clip and gspo, found {self.surrogate!r}")


class PolicyLoss(NamedTuple):
    """Sums over loss tokens; nothing is divided."""

    loss: Tensor  # scalar, with gradient into logprob
    sequences: Mapping[str, Tensor]  # SUMS -> [sequences] float32, detached


def policy_loss(
    logprob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    objective: PolicyObjective,
    *,
    old_logprob: Tensor | None = None,
    rollout_logprob: Tensor | None = None,
    reference_logprob: Tensor | None = None,
) -> PolicyLoss:
    """Loss of packed sequences; a sequence's sums have the same bits in any packing.

    logprob            [tokens] float32, of the policy that is trained: the only input with a gradient
    advantage          [tokens] float32
    mask               [tokens] bool, the loss tokens; anything else may be NaN
    cu_seqlens         [sequences + 1] int32, ascending from 0 to tokens
    old_logprob        [tokens], of the policy before this batch's first update; without it rho is 1 and has a gradient
    rollout_logprob    [tokens], of the sampler; read unless importance is "off"
    reference_logprob  [tokens]; read unless kl is "off"

    Raises ValueError for a shape or dtype, or for log-probs that the objective needs and that are missing.
    """
    _check(logprob, advantage, mask, cu_seqlens, objective, old_logprob, rollout_logprob, reference_logprob)
    old = logprob.detach() if old_logprob is None else old_logprob
    rollout = old if rollout_logprob is None else rollout_logprob
    reference = old if reference_logprob is None else reference_logprob
    advantage, old, rollout, reference = (
        tensor.detach().to(logprob.dtype) for tensor in (advantage, old, rollout, reference)
    )
    path = _TritonPath.apply if takes_triton_path(logprob) else _torch_path
    sums = path(logprob, advantage, old, rollout, reference, mask, cu_seqlens, objective)
    return PolicyLoss(sums[0].sum(), dict(zip(SUMS, sums.detach(), strict=True)))


def _torch_path(
    logprob: Tensor,
    advantage: Tensor,
    old: Tensor,
    rollout: Tensor,
    reference: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    objective: PolicyObjective,
) -> Tensor:
    """[SUMS, sequences]; masks select before anything is computed."""
    logprob, advantage, old, rollout, reference = (
        torch.where(mask, tensor, 0) for tensor in (logprob, advantage, old, rollout, reference)
    )
    log_ratio = logprob - old
    if objective.surrogate == "gspo":
        mean = _segment_mean(log_ratio.detach(), mask, cu_seqlens)
        log_ratio = mean + logprob - logprob.detach()
    ratio = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    surrogate, clipped = _surrogate(logprob, ratio, advantage, objective)
    uncorrected = (old - rollout).clamp(max=_MAX_LOG_RATIO).exp()
    weight = torch.ones_like(uncorrected)
    if objective.importance == "truncated":
        weight = uncorrected.clamp(max=objective.importance_high)
    elif objective.importance == "masked":
        inside = (uncorrected >= objective.importance_low) & (uncorrected <= objective.importance_high)
        weight = uncorrected.where(inside, 0)
    corrected = (weight != uncorrected) & (objective.importance != "off")
    kl = _kl(reference - logprob, objective)
    loss = objective.kl_coefficient * kl - weight * surrogate
    rows = [loss, ratio, clipped, weight, corrected, kl]
    tokens = torch.stack([torch.where(mask, row, 0) for row in rows])  # [SUMS, tokens]
    return torch.stack([part.sum(1) for part in tokens.split(_lengths(cu_seqlens), 1)], 1)


def _surrogate(logprob: Tensor, ratio: Tensor, advantage: Tensor, objective: PolicyObjective) -> tuple[Tensor, Tensor]:
    """S, and where its gradient was clipped away (or, for cispo, its weight cut)."""
    low, high = 1 - objective.clip_low, 1 + objective.clip_high
    if objective.surrogate == "reinforce":
        return advantage * logprob, torch.zeros_like(ratio)
    inside = ratio.clamp(low, high)
    if objective.surrogate == "cispo":
        return inside.detach() * advantage * logprob, (inside != ratio).to(ratio.dtype)
    surrogate = torch.minimum(ratio * advantage, inside * advantage)
    clipped = inside * advantage < ratio * advantage
    if objective.dual_clip is not None:
        floor = torch.where(advantage < 0, objective.dual_clip * advantage, -torch.inf)
        clipped = clipped | (surrogate < floor)
        surrogate = torch.where(surrogate < floor, floor, surrogate)
    return surrogate, clipped.to(ratio.dtype)


def _kl(d: Tensor, objective: PolicyObjective) -> Tensor:
    """d = reference log p - log p, cut at +-20, beyond which there is no gradient."""
    d = d.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    if objective.kl == "k1":
        return -d
    if objective.kl == "k2":
        return d * d / 2
    if objective.kl == "k3":
        return d.expm1() - d
    return torch.zeros_like(d)


def _lengths(cu_seqlens: Tensor) -> list[int]:
    return cu_seqlens.diff().tolist()


def _segment_mean(values: Tensor, mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Mean of each sequence's loss tokens, at each of its tokens."""
    lengths = _lengths(cu_seqlens)
    means = [
        part.sum() / seen.sum().clamp_min(1)
        for part, seen in zip(values.split(lengths), mask.split(lengths), strict=True)
    ]
    return torch.stack(means).repeat_interleave(cu_seqlens.diff())


class _TritonPath(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logprob: Tensor,
        advantage: Tensor,
        old: Tensor,
        rollout: Tensor,
        reference: Tensor,
        mask: Tensor,
        cu_seqlens: Tensor,
        objective: PolicyObjective,
    ) -> Tensor:
        sequences = len(cu_seqlens) - 1
        gradient = logprob.new_empty(len(logprob))
        sums = logprob.new_empty(len(SUMS), sequences)
        launch(
            sequence_loss,
            (sequences,),
            logprob.device,
            logprob_ptr=logprob.contiguous(),
            advantage_ptr=advantage.contiguous(),
            old_ptr=old.contiguous(),
            rollout_ptr=rollout.contiguous(),
            reference_ptr=reference.contiguous(),
            mask_ptr=mask.contiguous(),
            cu_seqlens_ptr=cu_seqlens,
            gradient_ptr=gradient,
            sums_ptr=sums,
            sequences=sequences,
            clip_low=1 - objective.clip_low,
            clip_high=1 + objective.clip_high,
            dual_clip=objective.dual_clip or 0.0,
            importance_low=objective.importance_low,
            importance_high=objective.importance_high,
            kl_coefficient=objective.kl_coefficient,
            SURROGATE=objective.surrogate,
            DUAL=objective.dual_clip is not None,
            IMPORTANCE=objective.importance,
            KL=objective.kl,
            BLOCK=_BLOCK,
            warps=4,
        )
        ctx.save_for_backward(gradient, cu_seqlens)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_sums: Tensor) -> tuple[Tensor | None, ...]:
        gradient, cu_seqlens = ctx.saved_tensors
        per_token = grad_sums[0].repeat_interleave(cu_seqlens.diff(), output_size=len(gradient))
        return gradient * per_token, None, None, None, None, None, None, None


_BLOCK = 1024
_LOG2_E = tl.constexpr(1.4426950408889634)
_BOUND = tl.constexpr(_MAX_LOG_RATIO)


@triton.jit
def exp(x):
    return tl.exp2(x * _LOG2_E)


@triton.jit
def at(pointer, token, seen):
    return tl.load(pointer + token, mask=seen, other=0.0)


@triton.jit(do_not_specialize=["sequences"])
def sequence_loss(
    logprob_ptr,  # [tokens] float32, and so are the next four
    advantage_ptr,
    old_ptr,
    rollout_ptr,
    reference_ptr,
    mask_ptr,  # [tokens] bool
    cu_seqlens_ptr,  # [sequences + 1]
    gradient_ptr,  # [tokens] out, of the loss by logprob
    sums_ptr,  # [SUMS, sequences] out
    sequences,
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
    """One sequence: sums per lane in token order, then over lanes."""
    sequence = tl.program_id(0)
    first = tl.load(cu_seqlens_ptr + sequence)
    last = tl.load(cu_seqlens_ptr + sequence + 1)
    mean = 0.0
    if SURROGATE == "gspo":
        mean = mean_log_ratio(logprob_ptr, old_ptr, mask_ptr, first, last, BLOCK)
    loss_sum = tl.zeros((BLOCK,), tl.float32)
    ratio_sum = tl.zeros((BLOCK,), tl.float32)
    clipped_sum = tl.zeros((BLOCK,), tl.float32)
    weight_sum = tl.zeros((BLOCK,), tl.float32)
    corrected_sum = tl.zeros((BLOCK,), tl.float32)
    kl_sum = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(first, last, BLOCK):
        token = start + tl.arange(0, BLOCK)
        seen = tl.load(mask_ptr + token, mask=token < last, other=0).to(tl.int1)
        logprob = at(logprob_ptr, token, seen)
        advantage = at(advantage_ptr, token, seen)
        old = at(old_ptr, token, seen)

        log_ratio = logprob - old
        if SURROGATE == "gspo":
            log_ratio = tl.zeros((BLOCK,), tl.float32) + mean
        sane = tl.abs(log_ratio) <= _BOUND
        ratio = exp(tl.minimum(tl.maximum(log_ratio, -_BOUND), _BOUND))
        surrogate, slope, clipped = surrogate_at(
            logprob, advantage, ratio, sane, clip_low, clip_high, dual_clip, SURROGATE, DUAL
        )
        weight = tl.full((BLOCK,), 1.0, tl.float32)
        corrected = seen & False
        if IMPORTANCE != "off":
            log_importance = old - at(rollout_ptr, token, seen)
            weight, corrected = importance_at(log_importance, importance_low, importance_high, IMPORTANCE)
        loss = -weight * surrogate
        gradient = -weight * slope
        kl = tl.zeros((BLOCK,), tl.float32)
        if KL != "off":
            kl, kl_slope, near = kl_at(at(reference_ptr, token, seen) - logprob, KL)
            loss += kl_coefficient * kl
            gradient += tl.where(near, kl_coefficient * kl_slope, 0.0)

        tl.store(gradient_ptr + token, tl.where(seen, gradient, 0.0), mask=token < last)
        loss_sum += tl.where(seen, loss, 0.0)
        ratio_sum += tl.where(seen, ratio, 0.0)
        clipped_sum += tl.where(seen & clipped, 1.0, 0.0)
        weight_sum += tl.where(seen, weight, 0.0)
        corrected_sum += tl.where(seen & corrected, 1.0, 0.0)
        kl_sum += tl.where(seen, kl, 0.0)
    out = sums_ptr + sequence
    tl.store(out, tl.sum(loss_sum, 0))
    tl.store(out + sequences, tl.sum(ratio_sum, 0))
    tl.store(out + 2 * sequences, tl.sum(clipped_sum, 0))
    tl.store(out + 3 * sequences, tl.sum(weight_sum, 0))
    tl.store(out + 4 * sequences, tl.sum(corrected_sum, 0))
    tl.store(out + 5 * sequences, tl.sum(kl_sum, 0))


@triton.jit
def mean_log_ratio(logprobs, olds, masks, first, last, BLOCK: tl.constexpr):
    """Of the loss tokens from `first` to `last`; 0 where there is none."""
    log_ratio_sum = tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(first, last, BLOCK):
        token = start + tl.arange(0, BLOCK)
        seen = tl.load(masks + token, mask=token < last, other=0).to(tl.int1)
        log_ratio_sum += at(logprobs, token, seen) - at(olds, token, seen)
        count += seen.to(tl.float32)
    return tl.sum(log_ratio_sum, 0) / tl.maximum(tl.sum(count, 0), 1.0)


@triton.jit
def surrogate_at(
    logprob, advantage, ratio, sane, clip_low, clip_high, dual_clip, SURROGATE: tl.constexpr, DUAL: tl.constexpr
):
    """S, its slope by logprob, and where it was clipped. A factor that is not `sane` has no slope."""
    inside = tl.minimum(tl.maximum(ratio, clip_low), clip_high)
    if SURROGATE == "reinforce":
        surrogate = advantage * logprob
        slope = advantage
        clipped = sane & False
    elif SURROGATE == "cispo":
        surrogate = inside * advantage * logprob
        slope = inside * advantage
        clipped = inside != ratio
    else:
        clipped = inside * advantage < ratio * advantage
        surrogate = tl.where(clipped, inside, ratio) * advantage
        if DUAL:
            floor = dual_clip * advantage
            cut = (advantage < 0) & (surrogate < floor)
            surrogate = tl.where(cut, floor, surrogate)
            clipped = clipped | cut
        slope = tl.where(clipped | (sane == 0), 0.0, ratio * advantage)
    return surrogate, slope, clipped


@triton.jit
def importance_at(log_importance, low, high, IMPORTANCE: tl.constexpr):
    """w, and where it is not what was measured."""
    uncorrected = exp(tl.minimum(log_importance, _BOUND))
    if IMPORTANCE == "truncated":
        weight = tl.minimum(uncorrected, high)
    else:
        weight = tl.where((uncorrected >= low) & (uncorrected <= high), uncorrected, 0.0)
    return weight, weight != uncorrected


@triton.jit
def kl_at(log_ratio, KL: tl.constexpr):
    """The estimate, its slope by logprob, and where the log ratio was not cut: elsewhere there is no slope."""
    near = tl.abs(log_ratio) <= _BOUND
    d = tl.minimum(tl.maximum(log_ratio, -_BOUND), _BOUND)
    if KL == "k1":
        kl = -d
        slope = tl.full(d.shape, 1.0, tl.float32)
    elif KL == "k2":
        kl = d * d / 2
        slope = -d
    else:
        # exp(d) - 1 cancels near 0, where its series is exact to float32
        tiny = tl.abs(d) < 1e-2
        expm1 = tl.where(tiny, d * (1 + d * (0.5 + d * (1 / 6 + d / 24))), exp(d) - 1)
        kl = tl.where(tiny, d * d * (0.5 + d * (1 / 6 + d / 24)), expm1 - d)
        slope = -expm1
    return kl, slope, near


def _check(
    logprob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor,
    objective: PolicyObjective,
    old_logprob: Tensor | None,
    rollout_logprob: Tensor | None,
    reference_logprob: Tensor | None,
) -> None:
    if logprob.dim() != 1 or logprob.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected logprob float32 [tokens], found {logprob.dtype} {list(logprob.shape)}")
    if mask.dtype != torch.bool:
        raise ValueError(f"expected mask bool, found {mask.dtype}")
    others = {
        "advantage": advantage,
        "mask": mask,
        "old_logprob": old_logprob,
        "rollout_logprob": rollout_logprob,
        "reference_logprob": reference_logprob,
    }
    check_one_device(logprob=logprob, **others)
    for name, tensor in others.items():
        if tensor is not None and tensor.shape != logprob.shape:
            raise ValueError(f"expected {name} [{len(logprob)}], found {list(tensor.shape)}")
    if objective.importance != "off" and rollout_logprob is None:
        raise ValueError(f"importance {objective.importance!r} needs rollout_logprob")
    if objective.kl != "off" and reference_logprob is None:
        raise ValueError(f"kl {objective.kl!r} needs reference_logprob")
    ends = cu_seqlens.tolist()
    if len(ends) < 2 or ends[0] != 0 or ends[-1] != len(logprob) or ends != sorted(ends):
        raise ValueError(f"expected cu_seqlens ascending from 0 to {len(logprob)}, found {ends[:8]}")
