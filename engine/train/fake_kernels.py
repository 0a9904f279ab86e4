"""Stand-ins of the fused kernels of a GPU on fake tensors: they give the shapes, and keep for backward what these keep.

Kept are, by the sources of Transformer Engine 2.20 and mamba-ssm 2.3: of a norm its input and one float32 of each row,
of attention its queries, keys, values, outputs and one float32 of each head, and of the scan its input and its output
before the gate. Our own kernels in Triton are not replaced: their host code runs and only the launches are left out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from megatron.core.optimizer import clip_grads
from megatron.core.ssm import mamba_mixer
from torch import Tensor
from triton.runtime.jit import JITFunction

from cascade_rl.engine.backend import ssm, torch_layers
from cascade_rl.kernels.runtime.configs import CONFIGS


class _Kept(torch.autograd.Function):
    """(shape of the output, shapes of float32 that are kept, whether the output is, inputs that are) -> output."""

    @staticmethod
    def forward(ctx: Any, shape: tuple[int, ...], statistics: int, outputs: int, *inputs: Tensor) -> Tensor:
        output = inputs[0].new_empty(shape)
        floats = inputs[0].new_empty(statistics, dtype=torch.float32)
        ctx.save_for_backward(*inputs, floats, *[output] * outputs)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError("fake tensors have no backward pass here")


def _attention(
    self: torch_layers.TorchDotProductAttention, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> Tensor:
    tokens, heads, width = query.shape
    return _Kept.apply((tokens, heads, width), tokens * heads, 1, query, key, value).flatten(1)


def _scan(zxbcdt: Tensor, *weights: Any, **fixed: Any) -> Tensor:
    dt_bias = weights[2]
    shape = (*zxbcdt.shape[:2], dt_bias.numel() * fixed["headdim"])
    ungated = zxbcdt.new_empty(shape)
    return _Kept.apply(shape, 0, 0, zxbcdt, ungated)


def _normalize(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return _Kept.apply(x.shape, x.numel() // weight.numel(), 0, x)


def _grouped_norm(self: ssm.GroupedRMSNorm, x: Tensor) -> Tensor:
    return _Kept.apply(x.shape, x.numel() // self.group_size, 0, x)


def _norm_of_all(_chunk: int, _overflow: Tensor, tensors: list[list[Tensor]], *_: Any) -> tuple[Tensor, None]:
    return tensors[0][0].new_empty(1, dtype=torch.float32), None


@contextmanager
def fake_kernels(architecture: str) -> Iterator[None]:
    """`architecture`: a GPU of kernels/runtime/configs.py, such as sm90."""
    assert architecture in CONFIGS
    capability = int(architecture.removeprefix("sm")) // 10, 0
    with (
        mock.patch.object(torch_layers.TorchDotProductAttention, "forward", _attention),
        mock.patch.object(torch_layers, "normalize", _normalize),
        mock.patch.object(ssm.GroupedRMSNorm, "forward", _grouped_norm),
        mock.patch.object(mamba_mixer, "mamba_split_conv1d_scan_combined", _scan),
        mock.patch.object(clip_grads, "l2_norm_impl", _norm_of_all),
        mock.patch.object(JITFunction, "run", lambda *_, **__: None),
        mock.patch.object(torch.cuda, "get_device_capability", lambda *_: capability),
        mock.patch.object(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=132)),
    ):
        yield
