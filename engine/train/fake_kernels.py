"""Stand-ins of the fused kernels of a GPU on fake tensors: they give the shapes, and keep for backward what these keep.

Kept are, by the sources of Transformer Engine 2.20, mamba-ssm 2.3 and FLA 0.4: of a norm its input and one float32 of
each row, of attention its queries, keys, values, outputs and one float32 of each head, of the scan its input and its
output before the gate, and of the delta rule its inputs and a row of the triangular inverse. Our own kernels in Triton
are not replaced: their host code runs and only the launches are left out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from megatron.core.optimizer import clip_grads
from megatron.core.ssm import mamba_mixer
from megatron.core.ssm.gated_delta_net import common, gdn
from torch import Tensor
from triton.runtime.jit import JITFunction

from cascade_rl.engine.backend import ssm, torch_layers
from cascade_rl.kernels.runtime.configs import CONFIGS

DELTA_CHUNK = 64  # tokens of a chunk of FLA's gated delta rule


class _Kept(torch.autograd.Function):
    """An op that gives one tensor of shape `shape` and keeps for backward `inputs`, so many float32 `statistics`, and
    the output if `outputs` is 1. While its backward pass makes the gradients of all inputs, it also holds `workspace`:
    a number of float32, and a number of the output's dtype."""

    @staticmethod
    def forward(
        ctx: Any,
        shape: tuple[int, ...],
        statistics: int,
        outputs: int,
        workspace: tuple[int, int],
        *inputs: Tensor,
    ) -> Tensor:
        output = inputs[0].new_empty(shape)
        floats = inputs[0].new_empty(statistics, dtype=torch.float32)
        ctx.save_for_backward(*inputs, floats, *[output] * outputs)
        ctx.workspace, ctx.inputs = workspace, len(inputs)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        floats, numbers = ctx.workspace
        held = gradient.new_empty(floats, dtype=torch.float32), gradient.new_empty(numbers)
        inputs = zip(ctx.saved_tensors[: ctx.inputs], ctx.needs_input_grad[4:], strict=True)
        made = [torch.empty_like(tensor) if needed else None for tensor, needed in inputs]
        del held
        return None, None, None, None, *made


def _attention(
    self: torch_layers.TorchDotProductAttention, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> Tensor:
    tokens, heads, width = query.shape
    accumulated = query.numel(), 0  # gradients of the queries
    return _Kept.apply((tokens, heads, width), tokens * heads, 1, accumulated, query, key, value).flatten(1)


def _scan(zxbcdt: Tensor, *weights: Tensor, **fixed: Any) -> Tensor:
    convolution, _, dt_bias = weights[:3]
    channels = dt_bias.numel() * fixed["headdim"]
    tokens, state = zxbcdt.shape[0] * zxbcdt.shape[1], (len(convolution) - channels) // fixed["ngroups"] // 2
    states = -(-tokens // fixed["chunk_size"]) * channels * state
    ungated = zxbcdt.new_empty((*zxbcdt.shape[:2], channels))
    # the states and their gradients, first in float32, then also as operands; inputs of the scan and their gradients
    workspace = 2 * states, 2 * states + 2 * tokens * len(convolution) + ungated.numel()
    given = [weight for weight in (*weights, fixed["D"]) if weight is not None]
    return _Kept.apply(ungated.shape, 0, 0, workspace, zxbcdt, ungated, *given)


def _normalize(x: Tensor, weight: Tensor, bias: Tensor | None, *_: Any) -> Tensor:
    parameters = [weight] if bias is None else [weight, bias]
    return _Kept.apply(x.shape, x.numel() // weight.numel(), 0, (0, 0), x, *parameters)


def _grouped_norm(self: ssm.GroupedRMSNorm, x: Tensor) -> Tensor:
    return _Kept.apply(x.shape, x.numel() // self.group_size, 0, (0, 0), x, self.weight)


def _delta_rule(q: Tensor, k: Tensor, v: Tensor, *, g: Tensor, beta: Tensor, **_: Any) -> tuple[Tensor, None]:
    inverses = k.new_empty(*k.shape[:3], DELTA_CHUNK)
    states = -(-k.shape[1] // DELTA_CHUNK) * k.shape[2] * k.shape[3] * v.shape[3]
    # the states and their gradients; what is made again, w, u and the new values, and the gradients of w and values
    workspace = 2 * states + 2 * k.numel() + 3 * v.numel()
    return _Kept.apply(v.shape, 0, 0, (0, workspace), q, k, v, g, beta, inverses), None


def _convolution(*, x: Tensor, weight: Tensor, **_: Any) -> tuple[Tensor, None]:
    return _Kept.apply(x.shape, 0, 0, (0, 0), x, weight), None


def _l2norm(x: Tensor) -> Tensor:
    return _Kept.apply(x.shape, x.numel() // x.size(-1), 0, (0, 0), x)


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
        mock.patch.object(gdn, "chunk_gated_delta_rule", _delta_rule),
        mock.patch.object(gdn, "causal_conv1d", _convolution),
        mock.patch.object(common, "l2norm", _l2norm),
        mock.patch.object(clip_grads, "l2_norm_impl", _norm_of_all),
        mock.patch.object(JITFunction, "run", lambda *_, **__: None),
        mock.patch.object(torch.cuda, "get_device_capability", lambda *_: capability),
        mock.patch.object(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=132)),
    ):
        yield
