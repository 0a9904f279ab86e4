"""Exact KL between two models' next-token distributions, from their hidden states, without a logits tensor.

With student p and teacher q, logits divided by the temperature:

reverse  KL(p || q)
forward  KL(q || p)
jsd      beta KL(q || m) + (1 - beta) KL(p || m), m = beta q + (1 - beta) p
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.tools.tensor_descriptor import TensorDescriptor

from cascade_rl.kernels.fused_linear_logprob import check_operands
from cascade_rl.kernels.parts.slabs import gradient_scale, slab_products
from cascade_rl.kernels.parts.vocabulary import VocabularyShard, check_one_device, per_token, scatter_rows
from cascade_rl.kernels.parts.vocabulary_tiles import LOWEST, LOWEST_LOG_RATIO, finite, product, tile_of
from cascade_rl.kernels.runtime.launch import (
    column_blocks,
    config_for,
    launch,
    merge,
    programs,
    row_blocks,
    takes_triton_path,
    tma_operand,
)

Kind = Literal["reverse", "forward", "jsd"]

_LOWEST_LOGIT, _LOWEST_LOG_P = -1e30, -1e4


def fused_linear_kl(
    hidden: Tensor,
    weight: Tensor,
    teacher_hidden: Tensor,
    teacher_weight: Tensor,
    temperature: Tensor | float = 1.0,
    *,
    kind: Kind,
    vocab_size: int,
    beta: float = 0.5,
    mask: Tensor | None = None,
    tp_group: dist.ProcessGroup | None = None,
    chunk_tokens: int = 512,
) -> Tensor:
    """KL of each token in nats, [tokens] float32 (float64 for float64 inputs). Only the student gets a gradient.

    hidden, teacher_hidden  [tokens, hidden], [tokens, teacher hidden] float, the same on every rank of tp_group
    weight, teacher_weight  [padded vocab / tp, hidden], [padded vocab / tp, teacher hidden], this rank's rows
    temperature             [tokens] float, or one number, for both models; positive
    vocab_size              columns from here on are padding and are left out
    beta                    jsd only: the teacher's share, inside (0, 1)
    mask                    [tokens] bool: False gives 0 and no gradient and costs nothing; such rows may hold anything
    chunk_tokens            torch path only: memory for logits is twice [chunk_tokens, vocab / tp]

    Statistics and guarantees are those of `fused_linear_logprob`: float32 sums in vocabulary order and, on the Triton
    path, the same bits for any batch and number of ranks. Backward returns the gradient of hidden summed over tp_group.
    Reverse and forward KL take one pass over the logits and one all-gather; the jsd takes two of each.

    Raises ValueError for a shape, dtype, temperature, kind or beta out of range.
    """
    _check(hidden, weight, teacher_hidden, teacher_weight, temperature, kind, beta, mask, chunk_tokens)
    problem = _Problem(
        teacher_hidden=teacher_hidden.detach(),
        teacher_weight=teacher_weight.detach(),
        inverse_temperature=per_token("temperature", temperature, len(hidden), hidden).reciprocal(),
        shard=VocabularyShard.of(weight, vocab_size, tp_group),
        active=torch.arange(len(hidden), device=hidden.device) if mask is None else mask.nonzero()[:, 0],
        kind=kind,
        beta=beta,
        chunk_tokens=chunk_tokens,
    )
    path = _TritonPath if takes_triton_path(hidden) else _TorchPath
    return path.apply(hidden, weight, problem)


@dataclass(frozen=True)
class _Problem:
    """All inputs except the student."""

    teacher_hidden: Tensor
    teacher_weight: Tensor
    inverse_temperature: Tensor  # [tokens]
    shard: VocabularyShard
    active: Tensor  # int64, the unmasked rows
    kind: Kind
    beta: float
    chunk_tokens: int


class _TorchPath(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, problem: _Problem) -> Tensor:
        kl, mean, student, teacher = problem.inverse_temperature.new_zeros(4, len(hidden))
        for rows in problem.active.split(problem.chunk_tokens):
            z_student, z_teacher = _logits(hidden, weight, rows, problem)
            student[rows], teacher[rows] = _log_sum_exps(z_student, z_teacher, problem.shard)
            log_p = z_student.sub_(student[rows, None]).clamp_min_(_LOWEST_LOG_P)
            log_q = z_teacher.sub_(teacher[rows, None]).clamp_min_(_LOWEST_LOG_P)
            sums = torch.stack(_divergences(log_p, log_q, problem))
            if (work := problem.shard.sum(sums)) is not None:
                work.wait()
            kl[rows], mean[rows] = sums
        ctx.save_for_backward(hidden, weight, mean, student, teacher)
        ctx.problem = problem
        return kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, mean, student, teacher = ctx.saved_tensors
        problem: _Problem = ctx.problem
        columns = problem.shard.columns
        grad_hidden = torch.zeros_like(hidden, dtype=mean.dtype) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight, dtype=mean.dtype) if ctx.needs_input_grad[1] else None
        for rows in _with_gradient(problem.active, grad).split(problem.chunk_tokens):
            z_student, z_teacher = _logits(hidden, weight, rows, problem)
            log_p = z_student.sub_(student[rows, None]).clamp_min_(_LOWEST_LOG_P)
            log_q = z_teacher.sub_(teacher[rows, None]).clamp_min_(_LOWEST_LOG_P)
            scale = (grad * problem.inverse_temperature)[rows, None]
            gradient = _gradient(log_p, log_q, mean[rows, None], problem).mul_(scale)
            if grad_hidden is not None:
                grad_hidden[rows] = gradient @ weight[:columns].to(gradient.dtype)
            if grad_weight is not None:
                grad_weight[:columns].addmm_(gradient.T, hidden[rows].to(gradient.dtype))
        if grad_hidden is not None:
            if (work := problem.shard.sum(grad_hidden)) is not None:
                work.wait()
            grad_hidden = grad_hidden.to(hidden.dtype)
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None


def _with_gradient(active: Tensor, grad: Tensor) -> Tensor:
    return active[grad[active] != 0]


def _logits(hidden: Tensor, weight: Tensor, rows: Tensor, problem: _Problem) -> Iterator[Tensor]:
    """Logits of student and teacher, [rows, columns of this rank]."""
    scale = problem.inverse_temperature[rows, None]
    for states, head in ((hidden, weight), (problem.teacher_hidden, problem.teacher_weight)):
        head = head[: problem.shard.columns].to(scale.dtype)
        yield (states[rows].to(scale.dtype) * scale @ head.T).clamp_min_(_LOWEST_LOGIT)


def _log_sum_exps(z_student: Tensor, z_teacher: Tensor, shard: VocabularyShard) -> list[Tensor]:
    """Log-sum-exp (lse) of student and teacher over all ranks, [rows] each."""
    local = [
        z.logsumexp(1) if shard.columns else z.new_full(z.shape[:1], _LOWEST_LOGIT) for z in (z_student, z_teacher)
    ]
    return list(shard.gather(torch.stack(local)).logsumexp(0))


def _divergences(log_p: Tensor, log_q: Tensor, problem: _Problem) -> tuple[Tensor, Tensor]:
    """This rank's part of the KL and of the mean under p that the gradient subtracts; [rows] each."""
    if problem.kind == "forward":
        kl = (log_q.exp() * (log_q - log_p)).sum(1)
        return kl, torch.zeros_like(kl)
    if problem.kind == "reverse":
        kl = (log_p.exp() * (log_p - log_q)).sum(1)
        return kl, kl
    log_m = _log_mixture(log_p, log_q, problem.beta)
    of_student = (log_p.exp() * (log_p - log_m)).sum(1)
    of_teacher = (log_q.exp() * (log_q - log_m)).sum(1)
    return problem.beta * of_teacher + (1 - problem.beta) * of_student, of_student


def _gradient(log_p: Tensor, log_q: Tensor, mean: Tensor, problem: _Problem) -> Tensor:
    """Gradient of the KL by the student's logits (dlogits)."""
    if problem.kind == "forward":
        return log_p.exp() - log_q.exp()
    if problem.kind == "reverse":
        return log_p.exp() * (log_p - log_q - mean)
    log_m = _log_mixture(log_p, log_q, problem.beta)
    return (1 - problem.beta) * log_p.exp() * (log_p - log_m - mean)


def _log_mixture(log_p: Tensor, log_q: Tensor, beta: float) -> Tensor:
    """log m. Liger takes the logarithm of the sum: NaN where p and q are below exp(-104) (Liger-Kernel#1453)."""
    return torch.logaddexp(log_p + math.log(1 - beta), log_q + math.log(beta))


class _TritonPath(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, problem: _Problem) -> Tensor:
        active, tokens = problem.active, len(hidden)
        pair = _Pair.of(hidden, weight, problem, active)
        kl, mean, student, teacher = pair.divergence(problem)
        ctx.save_for_backward(hidden, weight, mean, student, teacher)
        ctx.problem = problem
        return scatter_rows(kl * _LN_2.value, active, tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, mean, student, teacher = ctx.saved_tensors
        problem: _Problem = ctx.problem
        rows = _with_gradient(problem.active, grad)
        among = torch.searchsorted(problem.active, rows)
        pair = _Pair.of(hidden, weight, problem, rows)
        factor = (grad * problem.inverse_temperature)[rows]
        mean, student, teacher = mean[among], student[among], teacher[among]
        # p |log p - log q - mean| is below 2 mean + 1 / e, and |p - q| below 1.
        scale = gradient_scale(factor.abs() * (2 * mean + 1))
        factor = factor * scale

        def fill(first: int, columns: int, out: Tensor) -> None:
            pair.gradients(problem, first, columns, mean, student, teacher, factor, out)

        grad_rows, grad_weight = slab_products(
            pair.student, weight, problem.shard, fill, scale, *ctx.needs_input_grad[:2]
        )
        grad_hidden = None if grad_rows is None else scatter_rows(grad_rows, rows, len(hidden)).to(hidden.dtype)
        return grad_hidden, grad_weight, None


_LOG2_E = 1.4426950408889634
_LN_2 = tl.constexpr(0.6931471805599453)
_STATISTICS = 5


@dataclass(frozen=True)
class _Pair:
    """The rows of student and teacher that a kernel works on."""

    student: Tensor  # [rows, hidden]
    teacher: Tensor  # [rows, teacher hidden]
    weight: Tensor
    teacher_weight: Tensor
    scale: Tensor  # [rows] log2(e) / temperature

    @classmethod
    def of(cls, hidden: Tensor, weight: Tensor, problem: _Problem, rows: Tensor) -> "_Pair":
        return cls(
            hidden.index_select(0, rows),
            problem.teacher_hidden.index_select(0, rows),
            weight,
            problem.teacher_weight,
            problem.inverse_temperature[rows] * _LOG2_E,
        )

    def divergence(self, problem: _Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """KL, the mean that the gradient subtracts, log-sum-exp (lse) of student and teacher; [rows], in log2."""
        if not len(self.scale):
            return tuple(self.scale.new_empty(4, 0))
        statistics = self._over_vocabulary(problem, problem.kind)
        student_k, student_total, teacher_k, teacher_total, cross = statistics
        log_student, log_teacher = student_total.log2(), teacher_total.log2()
        student, teacher = student_k + log_student, teacher_k + log_teacher
        if problem.kind == "reverse":
            kl = (cross / student_total - log_student + log_teacher).clamp_min_(0)
            return kl, kl, student, teacher
        if problem.kind == "forward":
            kl = (cross / teacher_total - log_teacher + log_student).clamp_min_(0)
            return kl, torch.zeros_like(kl), student, teacher
        _, of_student, _, of_teacher, _ = self._over_vocabulary(problem, "mixture", student, teacher)
        return (
            problem.beta * of_teacher + (1 - problem.beta) * of_student,
            of_student,
            student,
            teacher,
        )

    def _over_vocabulary(
        self, problem: _Problem, quantity: str, student: Tensor | None = None, teacher: Tensor | None = None
    ) -> Tensor:
        """[5, rows], merged over tiles, groups and ranks; see `tile_divergence`."""
        config, shard, device = config_for(self.scale.device), problem.shard, self.scale.device
        tile = config.mixture if quantity == "mixture" else config.divergence
        tokens, rows = len(self.scale), len(self.weight)
        group_columns = config.group_columns(shard.vocab_size)
        column_tiles = triton.cdiv(rows, tile.columns)
        mine = self.scale.new_empty(triton.cdiv(rows, group_columns), _STATISTICS, tokens)
        for start in range(0, tokens, config.launch_tokens):
            chunk = slice(start, min(start + config.launch_tokens, tokens))
            count = chunk.stop - start
            tiles = self.scale.new_empty(column_tiles, _STATISTICS, count)
            launch(
                tile_divergence,
                (programs(device, triton.cdiv(count, tile.rows) * column_tiles),),
                device,
                **self._operands(tile, chunk),
                student_lse_ptr=self.scale if student is None else student[chunk],
                teacher_lse_ptr=self.scale if teacher is None else teacher[chunk],
                statistics_ptr=tiles,
                tokens=count,
                columns=shard.columns,
                rows=rows,
                log_beta=math.log2(problem.beta),
                log_rest=math.log2(1 - problem.beta),
                QUANTITY=quantity,
            )
            fan = group_columns // tile.columns
            merge(merge_divergence, tiles, mine[:, :, chunk], fan, QUANTITY=quantity)
        gathered = shard.gather(mine.flatten(0, 1)).view(-1, _STATISTICS, tokens)
        merged = self.scale.new_empty(1, _STATISTICS, tokens)
        merge(merge_divergence, gathered, merged, len(gathered), QUANTITY=quantity)
        return merged[0]

    def gradients(
        self,
        problem: _Problem,
        first: int,
        columns: int,
        mean: Tensor,
        student: Tensor,
        teacher: Tensor,
        factor: Tensor,
        out: Tensor,
    ) -> None:
        """Writes out [rows, columns]: gradient of sum(factor * KL) by the student's logits before the temperature."""
        device, tokens = self.scale.device, len(self.scale)
        tile = config_for(device).divergence
        tiles = triton.cdiv(tokens, tile.rows) * triton.cdiv(columns, tile.columns)
        launch(
            divergence_gradients,
            (programs(device, tiles),),
            device,
            **self._operands(tile, slice(0, tokens)),
            gradients=TensorDescriptor.from_tensor(out, [tile.rows, tile.columns]),
            student_lse_ptr=student,
            teacher_lse_ptr=teacher,
            mean_ptr=mean,
            factor_ptr=factor,
            tokens=tokens,
            first=first,
            columns=columns,
            log_beta=math.log2(problem.beta),
            log_rest=math.log2(1 - problem.beta),
            rest=1 - problem.beta,
            KIND=problem.kind,
        )

    def _operands(self, tile: Any, rows: slice) -> dict[str, Any]:
        return {
            "student": row_blocks(tma_operand(self.student[rows]), tile),
            "student_weight": column_blocks(tma_operand(self.weight), tile),
            "teacher": row_blocks(tma_operand(self.teacher[rows]), tile),
            "teacher_weight": column_blocks(tma_operand(self.teacher_weight), tile),
            "scale_ptr": self.scale[rows],
            "student_width": self.student.shape[1],
            "teacher_width": self.teacher.shape[1],
            "BM": tile.rows,
            "BN": tile.columns,
            "BK": tile.depth(self.student.element_size()),
            "BAND": tile.band,
            "warps": tile.warps,
            "stages": tile.stages,
        }


@triton.jit
def log_mixture(log_p, log_q, log_rest, log_beta):
    """log2((1 - beta) p + beta q), from logarithms, because p and q may both underflow."""
    a = log_p + log_rest
    b = log_q + log_beta
    top = tl.maximum(a, b)
    return top + tl.log2(tl.exp2(a - top) + tl.exp2(b - top))


@triton.jit(do_not_specialize=["tokens", "columns", "rows", "student_width", "teacher_width"])
def tile_divergence(
    student,  # [tokens, hidden]
    student_weight,  # [rows, hidden]
    teacher,  # [tokens, teacher hidden]
    teacher_weight,  # [rows, teacher hidden]
    scale_ptr,  # [tokens]
    student_lse_ptr,  # [tokens], in log2; read if QUANTITY is "mixture"
    teacher_lse_ptr,
    statistics_ptr,  # [column tiles, 5, tokens] out
    tokens,
    columns,
    rows,
    student_width,
    teacher_width,
    log_beta,
    log_rest,
    QUANTITY: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BAND: tl.constexpr,
):
    """For student and teacher, k = ceil(max z) and sum 2**(z - k); then one cross term, with z relative to k:

    reverse  sum 2**z_s (z_s - z_t);  forward  sum 2**z_t (z_t - z_s)
    mixture  sum p (log p - log m) and sum q (log q - log m) replace the two sums; k and the cross term are 0
    """
    row_tiles = tl.cdiv(tokens, BM)
    column_tiles = tl.cdiv(rows, BN)
    for item in tl.range(tl.program_id(0), row_tiles * column_tiles, tl.num_programs(0)):
        row_tile, column_tile = tile_of(item, row_tiles, column_tiles, BAND)
        z_s = product(student, student_weight, row_tile * BM, column_tile * BN, student_width, BM, BN, BK)
        z_t = product(teacher, teacher_weight, row_tile * BM, column_tile * BN, teacher_width, BM, BN, BK)
        token = row_tile * BM + tl.arange(0, BM)
        real = token < tokens
        part = (column_tile * BN + tl.arange(0, BN) < columns)[None, :]
        scale = tl.load(scale_ptr + token, mask=real, other=0.0)[:, None]
        z_s = tl.where(part, finite(z_s * scale), LOWEST)
        z_t = tl.where(part, finite(z_t * scale), LOWEST)
        out = statistics_ptr + column_tile.to(tl.int64) * 5 * tokens + token
        if QUANTITY == "mixture":
            log_p = z_s - tl.load(student_lse_ptr + token, mask=real, other=0.0)[:, None]
            log_q = z_t - tl.load(teacher_lse_ptr + token, mask=real, other=0.0)[:, None]
            log_p = tl.where(log_p < LOWEST_LOG_RATIO, LOWEST_LOG_RATIO, log_p)
            log_q = tl.where(log_q < LOWEST_LOG_RATIO, LOWEST_LOG_RATIO, log_q)
            log_m = log_mixture(log_p, log_q, log_rest, log_beta)
            zero = tl.zeros((BM,), tl.float32)
            tl.store(out, zero, mask=real)
            tl.store(out + tokens, tl.sum(tl.exp2(log_p) * (log_p - log_m), 1), mask=real)
            tl.store(out + 2 * tokens, zero, mask=real)
            tl.store(out + 3 * tokens, tl.sum(tl.exp2(log_q) * (log_q - log_m), 1), mask=real)
            tl.store(out + 4 * tokens, zero, mask=real)
        else:
            k_s = tl.ceil(tl.max(z_s, 1))
            k_t = tl.ceil(tl.max(z_t, 1))
            z_s = z_s - k_s[:, None]
            z_t = z_t - k_t[:, None]
            e_s = tl.exp2(z_s)
            e_t = tl.exp2(z_t)
            cross = tl.zeros((BM,), tl.float32)
            if QUANTITY == "reverse":
                cross = tl.sum(e_s * (z_s - z_t), 1)
            if QUANTITY == "forward":
                cross = tl.sum(e_t * (z_t - z_s), 1)
            tl.store(out, k_s, mask=real)
            tl.store(out + tokens, tl.sum(e_s, 1), mask=real)
            tl.store(out + 2 * tokens, k_t, mask=real)
            tl.store(out + 3 * tokens, tl.sum(e_t, 1), mask=real)
            tl.store(out + 4 * tokens, cross, mask=real)


@triton.jit(do_not_specialize=["tokens", "parts", "out_stride"])
def merge_divergence(
    parts_ptr,  # [parts, 5, tokens]
    merged_ptr,  # [groups, 5, out_stride] out
    tokens,
    parts,
    out_stride,
    FAN: tl.constexpr,
    QUANTITY: tl.constexpr,
    BM: tl.constexpr,
):
    """Merges each group of FAN parts into one, in order."""
    token = tl.program_id(0) * BM + tl.arange(0, BM)
    group = tl.program_id(1)
    real = token < tokens
    lowest = 0.0 if QUANTITY == "mixture" else LOWEST
    k_s = tl.full((BM,), lowest, tl.float32)
    k_t = tl.full((BM,), lowest, tl.float32)
    total_s = tl.zeros((BM,), tl.float32)
    total_t = tl.zeros((BM,), tl.float32)
    cross = tl.zeros((BM,), tl.float32)
    for part in tl.range(group * FAN, tl.minimum(group * FAN + FAN, parts)):
        at = parts_ptr + tl.cast(part, tl.int64) * 5 * tokens + token
        new_k_s = tl.load(at, mask=real, other=lowest)
        new_s = tl.load(at + tokens, mask=real, other=0.0)
        new_k_t = tl.load(at + 2 * tokens, mask=real, other=lowest)
        new_t = tl.load(at + 3 * tokens, mask=real, other=0.0)
        new_cross = tl.load(at + 4 * tokens, mask=real, other=0.0)
        top_s = tl.maximum(k_s, new_k_s)
        top_t = tl.maximum(k_t, new_k_t)
        old_shift_s = k_s - top_s
        old_shift_t = k_t - top_t
        new_shift_s = new_k_s - top_s
        new_shift_t = new_k_t - top_t
        if QUANTITY == "reverse":
            cross = tl.exp2(old_shift_s) * (cross + (old_shift_s - old_shift_t) * total_s)
            cross += tl.exp2(new_shift_s) * (new_cross + (new_shift_s - new_shift_t) * new_s)
        if QUANTITY == "forward":
            cross = tl.exp2(old_shift_t) * (cross + (old_shift_t - old_shift_s) * total_t)
            cross += tl.exp2(new_shift_t) * (new_cross + (new_shift_t - new_shift_s) * new_t)
        total_s = tl.exp2(old_shift_s) * total_s + tl.exp2(new_shift_s) * new_s
        total_t = tl.exp2(old_shift_t) * total_t + tl.exp2(new_shift_t) * new_t
        k_s = top_s
        k_t = top_t
    out = merged_ptr + group.to(tl.int64) * 5 * out_stride + token
    tl.store(out, k_s, mask=real)
    tl.store(out + out_stride, total_s, mask=real)
    tl.store(out + 2 * out_stride, k_t, mask=real)
    tl.store(out + 3 * out_stride, total_t, mask=real)
    tl.store(out + 4 * out_stride, cross, mask=real)


@triton.jit(do_not_specialize=["tokens", "first", "columns", "student_width", "teacher_width"])
def divergence_gradients(
    student,
    student_weight,
    teacher,
    teacher_weight,
    gradients,  # [tokens, columns] out
    scale_ptr,  # [tokens], and so are the next four
    student_lse_ptr,
    teacher_lse_ptr,
    mean_ptr,
    factor_ptr,
    tokens,
    first,
    columns,
    student_width,
    teacher_width,
    log_beta,
    log_rest,
    rest,
    KIND: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BAND: tl.constexpr,
):
    """factor times p (log p - log q - mean) (reverse), p - q (forward), (1 - beta) p (log p - log m - mean) (jsd)."""
    row_tiles = tl.cdiv(tokens, BM)
    column_tiles = tl.cdiv(columns, BN)
    for item in tl.range(tl.program_id(0), row_tiles * column_tiles, tl.num_programs(0)):
        row_tile, column_tile = tile_of(item, row_tiles, column_tiles, BAND)
        column = first + column_tile * BN
        log_p = product(student, student_weight, row_tile * BM, column, student_width, BM, BN, BK)
        log_q = product(teacher, teacher_weight, row_tile * BM, column, teacher_width, BM, BN, BK)
        token = row_tile * BM + tl.arange(0, BM)
        real = token < tokens
        scale = tl.load(scale_ptr + token, mask=real, other=0.0)[:, None]
        log_p = log_p * scale - tl.load(student_lse_ptr + token, mask=real, other=0.0)[:, None]
        log_q = log_q * scale - tl.load(teacher_lse_ptr + token, mask=real, other=0.0)[:, None]
        log_p = tl.where(log_p < LOWEST_LOG_RATIO, LOWEST_LOG_RATIO, log_p)
        log_q = tl.where(log_q < LOWEST_LOG_RATIO, LOWEST_LOG_RATIO, log_q)
        factor = tl.load(factor_ptr + token, mask=real, other=0.0)[:, None]
        if KIND == "forward":
            gradient = (tl.exp2(log_p) - tl.exp2(log_q)) * factor
        else:
            if KIND == "jsd":
                log_q = log_mixture(log_p, log_q, log_rest, log_beta)
                factor = factor * rest
            mean = tl.load(mean_ptr + token, mask=real, other=0.0)[:, None]
            gradient = tl.exp2(log_p) * (log_p - log_q - mean) * (factor * _LN_2)
        gradients.store([row_tile * BM, column_tile * BN], gradient.to(gradients.dtype))


def _check(
    hidden: Tensor,
    weight: Tensor,
    teacher_hidden: Tensor,
    teacher_weight: Tensor,
    temperature: Tensor | float,
    kind: Kind,
    beta: float,
    mask: Tensor | None,
    chunk_tokens: int,
) -> None:
    check_operands(hidden, weight)
    check_operands(teacher_hidden, teacher_weight)
    check_one_device(hidden=hidden, teacher_hidden=teacher_hidden, mask=mask)
    if len(hidden) != len(teacher_hidden) or len(weight) != len(teacher_weight):
        raise ValueError(
            f"expected the tokens and vocabulary of student and teacher to agree, found {len(hidden)} and "
            f"{len(teacher_hidden)} tokens, {len(weight)} and {len(teacher_weight)} rows"
        )
    if hidden.dtype != teacher_hidden.dtype:
        raise ValueError(f"expected student and teacher of one dtype, found {hidden.dtype} and {teacher_hidden.dtype}")
    if kind not in get_args(Kind):
        raise ValueError(f"kind must be one of {get_args(Kind)}, found {kind!r}")
    if not 0 < beta < 1:
        raise ValueError(f"beta must lie inside (0, 1), found {beta}")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != hidden.shape[:1]):
        raise ValueError(f"expected mask bool [{len(hidden)}], found {mask.dtype} {list(mask.shape)}")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, found {chunk_tokens}")
    if not torch.as_tensor(temperature > 0).all():
        raise ValueError("temperature must be positive everywhere, found one that is not")
