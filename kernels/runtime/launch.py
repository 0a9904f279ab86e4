"""Chooses the path of an op and launches kernels on the device of their tensors."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from cascade_rl.kernels.runtime import interpreter
from cascade_rl.kernels.runtime.configs import CONFIGS, Config, Tile

_TRITON_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_TMA_BYTES = 16
MERGE_ROWS = 128  # tokens per program of a merge kernel


def takes_triton_path(tensor: Tensor) -> bool:
    """True on a GPU, or where a test has chosen the interpreter. float64 always takes the torch path."""
    return (tensor.is_cuda or interpreter.chosen()) and tensor.dtype in _TRITON_DTYPES


def config_for(device: torch.device) -> Config:
    """Raises ValueError for a GPU that has no entry in `CONFIGS`."""
    if device.type != "cuda":
        return CONFIGS["interpreter"]
    name = f"sm{torch.cuda.get_device_capability(device)[0] * 10}"
    if name not in CONFIGS:
        raise ValueError(f"expected a GPU of {sorted(set(CONFIGS) - {'interpreter'})}, found {name}")
    return CONFIGS[name]


def launch(
    kernel: JITFunction, grid: tuple[int, ...], device: torch.device, *, warps: int, stages: int = 2, **arguments: Any
) -> None:
    """Launches `kernel` on `grid`; on a CPU device the interpreter runs it."""
    if device.type == "cuda":
        kernel[grid](**arguments, num_warps=warps, num_stages=stages)
    else:
        interpreter.run(kernel, grid, arguments)


def merge(kernel: JITFunction, parts: Tensor, merged: Tensor, fan: int, **constants: Any) -> None:
    """Merges parts [parts, n, tokens] in order, `fan` per group, into merged [groups, n, tokens], of any row stride."""
    launch(
        kernel,
        (-(-parts.shape[2] // MERGE_ROWS), len(merged)),
        parts.device,
        parts_ptr=parts,
        merged_ptr=merged,
        tokens=parts.shape[2],
        parts=len(parts),
        out_stride=merged.stride(1),
        FAN=fan,
        BM=MERGE_ROWS,
        warps=4,
        **constants,
    )


def programs(device: torch.device, tiles: int) -> int:
    """Programs of a persistent kernel: one per multiprocessor (SM), at most one per tile."""
    if device.type != "cuda":
        return min(interpreter.PROGRAMS, tiles)
    return min(torch.cuda.get_device_properties(device).multi_processor_count, tiles)


def tma_operand(matrix: Tensor) -> Tensor:
    """`matrix`, readable by the tensor memory accelerator (TMA); copied and padded with zeros only if it must be."""
    lanes = _TMA_BYTES // matrix.element_size()
    readable = matrix.stride(1) == 1 and matrix.stride(0) % lanes == 0 and matrix.data_ptr() % _TMA_BYTES == 0
    return matrix if readable else F.pad(matrix, (0, -matrix.shape[1] % lanes)).contiguous()


def row_blocks(matrix: Tensor, tile: Tile) -> TensorDescriptor:
    """TMA descriptor of hidden states, in blocks of `tile.rows` by the tile's depth."""
    return TensorDescriptor.from_tensor(matrix, [tile.rows, tile.depth(matrix.element_size())])


def column_blocks(matrix: Tensor, tile: Tile) -> TensorDescriptor:
    """TMA descriptor of a head weight, in blocks of `tile.columns` by the tile's depth."""
    return TensorDescriptor.from_tensor(matrix, [tile.columns, tile.depth(matrix.element_size())])
