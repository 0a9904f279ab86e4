"""Runs the Triton kernels of other projects on CPU tensors, in our interpreter, as if they were on a GPU."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any
from unittest import mock

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction

from cascade_rl.kernels.runtime import interpreter

PEERS = {"liger": "liger_kernel", "cut-cross-entropy": "cut_cross_entropy", "verl": "verl"}  # provider: import name


def missing() -> set[str]:
    """Providers whose package is not installed."""
    return {provider for provider, package in PEERS.items() if find_spec(package) is None}


@contextlib.contextmanager
def peers_interpreted() -> Iterator[None]:
    """Any launch in this block runs in our interpreter, which then allows bfloat16 arithmetic, as the peers use it."""
    with contextlib.ExitStack() as stack:
        for patch in (
            mock.patch.object(JITFunction, "run", _interpret),
            mock.patch.object(interpreter._Builder, "binary_op", _binary_op),
            mock.patch.object(torch.Tensor, "is_cuda", property(_asked_by_verl)),
            mock.patch.object(torch.cuda.nvtx, "range", lambda name: contextlib.nullcontext()),
            torch.compiler.set_stance("force_eager"),
            *_for_cut_cross_entropy(),
        ):
            stack.enter_context(patch)
        yield


def _interpret(kernel: JITFunction, *args: Any, grid: Any, **kwargs: Any) -> None:
    """Replaces JITFunction.run. Compiler options (num_warps, ...) are ignored."""
    named = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    defaults = {p.name: p.default for p in kernel.params if p.has_default}
    arguments = defaults | {name: value for name, value in named.items() if name in kernel.arg_names}
    interpreter.run(kernel, grid(arguments) if callable(grid) else grid, arguments)


def _asked_by_verl(tensor: torch.Tensor) -> bool:
    """Replaces Tensor.is_cuda, which verl asserts."""
    return sys._getframe(1).f_globals["__name__"].startswith("verl.")


def _binary_op(builder: InterpreterBuilder, lhs: TensorHandle, rhs: TensorHandle, op: Callable) -> TensorHandle:
    """Arithmetic on bfloat16 as on a GPU: in float32, then rounded."""
    if tl.bfloat16 not in (lhs.dtype.scalar, rhs.dtype.scalar):
        return InterpreterBuilder.binary_op(builder, lhs, rhs, op)
    found = op(interpreter._widened(lhs).data, interpreter._widened(rhs).data)
    return TensorHandle(interpreter.to_bfloat16(found), tl.bfloat16)


def _for_cut_cross_entropy() -> list[Any]:
    """The interpreter lacks libdevice, needed for log1p, and applies a caller's reduction element by element."""
    with contextlib.suppress(ModuleNotFoundError):
        from cut_cross_entropy import cce_backward, tl_utils

        return [
            mock.patch.object(tl_utils, "tl_log1p", _log1p),
            mock.patch.object(cce_backward, "tl_and_reduce_fn", tl.standard._elementwise_min),  # of booleans
        ]
    return []


@triton.jit
def _log1p(x):
    return tl.log(1 + x)
