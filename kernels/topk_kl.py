"""KL from the log-probs of K ids per token, the rest of the vocabulary as one bucket.

The log-probs come from `fused_linear_logprob` (its `candidates` are the teacher's top K); what is left is arithmetic on
[tokens, K], in plain torch on every device.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from cascade_rl.kernels.parts.vocabulary import check_one_device

Kind = Literal["reverse", "forward"]

_LEAST_TAIL = 2.0**-24  # of probability: what float32 cannot tell from none


def topk_kl(student_logprob: Tensor, teacher_logprob: Tensor, *, kind: Kind) -> Tensor:
    """KL of each token in nats, [tokens], with a gradient into both arguments.

    All ids but the K are one bucket: a KL of the coarser distributions, never negative and never above the exact one.
    The sum of the K terms alone is no KL and often negative, and clamped at 0 it has no gradient at most tokens
    (verl#7856).

    student_logprob  [tokens, K] float32 (float64), of distinct ids, over the whole vocabulary
    teacher_logprob  [tokens, K], of the same ids; minus infinity where a token has fewer than K
    kind             "reverse" KL(student || teacher), "forward" KL(teacher || student)

    Raises ValueError for shapes or dtypes that differ, or an unknown kind.
    """
    _check(student_logprob, teacher_logprob, kind)
    present = teacher_logprob > -torch.inf
    # Stand-ins are finite, and are selected away after: where() alone would leave NaN in the gradient.
    student = student_logprob.where(present, 0)
    teacher = teacher_logprob.where(present, 0)
    p, q = (student, teacher) if kind == "reverse" else (teacher, student)
    kl = (p.exp() * (p - q)).where(present, 0).sum(1)
    rest_p, rest_q = (_log_rest(_log_sum(x, present)) for x in (p, q))
    return kl + rest_p.exp() * (rest_p - rest_q)


def _log_sum(logprob: Tensor, present: Tensor) -> Tensor:
    """log sum exp over the ids that are present; very low where none is."""
    return logprob.where(present, -1e4).logsumexp(1)


def _log_rest(log_sum: Tensor) -> Tensor:
    """log(1 - exp(log_sum)), at least log _LEAST_TAIL, where there is no gradient."""
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
