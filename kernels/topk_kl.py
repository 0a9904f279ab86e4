"""KL from the log-probs of K ids per token, with the rest of the vocabulary as one bucket.

The log-probs come from `fused_linear_logprob` (its `candidates` are the teacher's top K). The remaining arithmetic on
[tokens, K] is plain torch on every device.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from cascade_rl.kernels.parts.vocabulary import check_one_device

Kind = Literal["reverse", "forward"]

_LEAST_TAIL = 2.0**-24  # probability that float32 cannot tell from 0


def topk_kl(student_logprob: Tensor, teacher_logprob: Tensor, *, kind: Kind) -> Tensor:
    """KL of each token in nats, [tokens], differentiable by both log-probs.

    All ids outside the K form one bucket. The result is the KL of the coarser distributions: never negative and never
    above the exact KL. The sum of the K terms alone is not a KL and is often negative. Clamped at 0 it has no gradient
    for most tokens (verl#7856).

    student_logprob  [tokens, K] float32 (or float64), of distinct ids, normalised over the whole vocabulary
    teacher_logprob  [tokens, K], of the same ids; minus infinity where a token has fewer than K
    kind             "reverse" KL(student || teacher), "forward" KL(teacher || student)

    Raises ValueError for shapes or dtypes that differ, or an unknown kind.
    """
    _check(student_logprob, teacher_logprob, kind)
    present = teacher_logprob > -torch.inf
    # Absent ids get finite values before the arithmetic: masking the result alone would leave NaN in the gradient.
    student = student_logprob.where(present, 0)
    teacher = teacher_logprob.where(present, 0)
    p, q = (student, teacher) if kind == "reverse" else (teacher, student)
    kl = (p.exp() * (p - q)).where(present, 0).sum(1)
    rest_p, rest_q = (_log_rest(_log_sum(x, present)) for x in (p, q))
    return kl + rest_p.exp() * (rest_p - rest_q)


def _log_sum(logprob: Tensor, present: Tensor) -> Tensor:
    """log sum exp over the present ids; very low if there are none."""
    return logprob.where(present, -1e4).logsumexp(1)


def _log_rest(log_sum: Tensor) -> Tensor:
    """log(1 - exp(log_sum)), clamped below at log _LEAST_TAIL, where there is no gradient."""
    log_sum = log_sum.clamp_max(math.log1p(-_LEAST_TAIL))
    small = log_sum < -math.log(2)
    by_log1p = torch.log1p(-log_sum.where(small, -1).exp())
    by_expm1 = torch.log(-torch.expm1(log_sum.where(~small, -0.5)))
    return by_log1p.where(small, by_expm1)


def _check(student: Tensor, teacher: Tensor, kind: str) -> None:
    if student.dim() != 2 or student.shape != teacher.shape:
        raise ValueError(
            f"expected student and teacher log-probs [tokens, K], found {list(student.shape)}, {list(teacher.shape)}"
        )
    if student.dtype != teacher.dtype or student.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected float32 log-probs, found {student.dtype} and {teacher.dtype}")
    check_one_device(student=student, teacher=teacher)
    if kind not in get_args(Kind):
        raise ValueError(f"kind must be one of {get_args(Kind)}, found {kind!r}")
