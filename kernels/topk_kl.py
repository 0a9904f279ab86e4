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
Tail = Literal["bucket", "drop", "renormalize"]

_LEAST_TAIL = 2.0**-24  # of probability: what float32 cannot tell from none


def topk_kl(student_logprob: Tensor, teacher_logprob: Tensor, *, kind: Kind, tail: Tail) -> Tensor:
    """KL of each token in nats, [tokens], with a gradient into both arguments.

    student_logprob  [tokens, K] float32 (float64), of distinct ids, over the whole vocabulary
    teacher_logprob  [tokens, K], of the same ids; minus infinity where a token has fewer than K
    kind             "reverse" KL(student || teacher), "forward" KL(teacher || student)
    tail             "bucket"       all other ids are one: a KL of the coarser distributions, never negative and never
                                    above the exact one
                     "drop"         the K terms alone, as verl has them: no KL, and often negative. It is not clamped,
                                    which would take the gradient away from most tokens (verl#7856)
                     "renormalize"  both distributions given that the id is one of the K: a KL, blind to the mass that
                                    the student puts elsewhere

    Raises ValueError for shapes or dtypes that differ, or an unknown kind or tail.
    """
    _check(student_logprob, teacher_logprob, kind, tail)
    present = teacher_logprob > -torch.inf
    # Stand-ins are finite, and are selected away after: where() alone would leave NaN in the gradient.
    student = student_logprob.where(present, 0)
    teacher = teacher_logprob.where(present, 0)
    if tail == "renormalize":
        student = student - _log_sum(student, present)[:, None]
        teacher = teacher - _log_sum(teacher, present)[:, None]
    p, q = (student, teacher) if kind == "reverse" else (teacher, student)
    kl = (p.exp() * (p - q)).where(present, 0).sum(1)
    if tail == "bucket":
        rest_p, rest_q = (_log_rest(_log_sum(x, present)) for x in (p, q))
        kl = kl + rest_p.exp() * (rest_p - rest_q)
    return kl


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


def _check(student: Tensor, teacher: Tensor, kind: str, tail: str) -> None:
    if student.dim() != 2 or student.shape != teacher.shape:
        raise ValueError(
            f"expected student and teacher log-probs [tokens, K], found {list(student.shape)}, {list(teacher.shape)}"
        )
    if student.dtype != teacher.dtype or student.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected float32 log-probs, found {student.dtype} and {teacher.dtype}")
    check_one_device(student=student, teacher=teacher)
    for name, value, known in (("kind", kind, Kind), ("tail", tail, Tail)):
        if value not in get_args(known):
            raise ValueError(f"{name} must be one of {get_args(known)}, found {value!r}")
