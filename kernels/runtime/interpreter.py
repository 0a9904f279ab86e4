"""Runs Triton kernels on CPU tensors: Triton's interpreter, with bfloat16 corrected.

The interpreter of Triton 3.6 to 3.9 keeps bfloat16 as its bits in uint16 and then multiplies, compares and rounds
those bits as integers: dots return garbage without an error, and casts truncate. Here a dot of bfloat16 is computed in
float32. A cast rounds to nearest even, with the same bits as torch. Arithmetic on bfloat16 itself is a TypeError,
because a kernel of this package must compute in float32.

Triton's interpreter uses `np.matmul` for a dot. Without AVX-512, OpenBLAS then gives the same row different bits at
different positions in the tile. Here a dot adds k by k, so an element has the same bits at every position.

No environment variable is needed. One process can interpret a kernel object here, compile it on a GPU and, in the gate,
compile it without one.
"""

import contextlib
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction

PROGRAMS = 3  # of a persistent kernel: few, so that each processes several tiles

_chosen = ContextVar("interpreter_chosen", default=False)


def chosen() -> bool:
    """Whether ops on CPU tensors take their Triton path; see `interpreted`."""
    return _chosen.get()


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """In this block, and in the backward of what it computed, ops on CPU tensors take their Triton path."""
    token = _chosen.set(True)
    try:
        yield
    finally:
        _chosen.reset(token)


def run(kernel: JITFunction, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
    """Runs all programs of `grid` on CPU tensors, one after the other. Errors of the kernel propagate unchanged."""
    constants = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    program = _rewritten(kernel)
    builder = interpreter.interpreter_builder
    with _language(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy warns about infinities and NaN; a GPU does not
        values = {
            name: value if name in constants else interpreter._implicit_cvt(value)
            for name, value in inspect.getcallargs(program, **arguments).items()
        }
        full_grid = (*grid, 1, 1)[:3]
        builder.set_grid_dim(*full_grid)
        for index in itertools.product(*map(range, full_grid)):
            builder.set_grid_idx(*index)
            program(**values)


def to_float32(bits: np.ndarray) -> np.ndarray:
    """bfloat16, as uint16 bits, to float32; exact."""
    return (np.ascontiguousarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 to bfloat16, as uint16 bits. Rounds to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    ties_to_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + ties_to_even) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


class _Builder(InterpreterBuilder):
    def cast_impl(self, source: TensorHandle, target: tl.dtype) -> TensorHandle:
        before, after = source.dtype.scalar, target.scalar
        if before == after or tl.bfloat16 not in (before, after):
            return super().cast_impl(source, target)
        if after == tl.bfloat16:
            return TensorHandle(to_bfloat16(source.data.astype(np.float32)), after)
        return super().cast_impl(TensorHandle(to_float32(source.data), tl.float32), target)

    def create_fp_to_fp(self, source: TensorHandle, target: tl.dtype, rounding_mode: Any) -> TensorHandle:
        if tl.bfloat16 in (source.dtype.scalar, target.scalar):
            return self.cast_impl(source, target)
        return super().create_fp_to_fp(source, target, rounding_mode)

    def create_dot(self, a: TensorHandle, b: TensorHandle, sum: TensorHandle, *hints: Any) -> TensorHandle:
        rows = _widened(a).data.T.astype(sum.data.dtype, order="C")  # [k, rows]
        columns = _widened(b).data.astype(sum.data.dtype, order="C")  # [k, columns]
        products = rows[:, :, None] * columns[:, None, :]
        return TensorHandle(products.sum(0) + sum.data, sum.dtype.scalar)

    def binary_op(self, lhs: TensorHandle, rhs: TensorHandle, op: Callable) -> TensorHandle:
        _refuse_bfloat16(op, lhs, rhs)
        return super().binary_op(lhs, rhs, op)

    def unary_op(self, value: TensorHandle, op: Callable) -> TensorHandle:
        _refuse_bfloat16(op, value)
        return super().unary_op(value, op)

    def create_fma(self, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
        _refuse_bfloat16("fma", x, y, z)
        return super().create_fma(x, y, z)


def _widened(handle: TensorHandle) -> TensorHandle:
    if handle.dtype.scalar.is_fp8():
        raise TypeError(f"dot of {handle.dtype.scalar}: cast to float16 or bfloat16 right after the load")
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return TensorHandle(to_float32(handle.data), tl.float32)


def _refuse_bfloat16(op: Any, *operands: TensorHandle) -> None:
    if any(operand.dtype.scalar == tl.bfloat16 for operand in operands):
        raise TypeError(f"{op} on bfloat16: cast to float32 right after the load")


# Rewritten kernels and the patched `triton.language` look these up in Triton's module.
interpreter.interpreter_builder = _Builder()
interpreter.interpreter_semantic = TritonSemantic(interpreter.interpreter_builder)


@contextlib.contextmanager
def _language() -> Iterator[None]:
    """In this block `triton.language` acts on arrays.

    Triton patches it again for each function that a kernel calls, which costs more than the arithmetic. It also leaves
    it patched, so nothing compiles afterwards. Here the two modules that hold the language are patched once.
    """
    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    scope.set_attr(JITFunction, "__call__", lambda function, *args, **kwargs: _rewritten(function)(*args, **kwargs))
    try:
        yield
    finally:
        scope.restore()


def _rewritten(function: JITFunction) -> Callable:
    return InterpretedFunction(function.fn).rewrite()
