"""Which path an op takes, and how a kernel is started on the device of its tensors."""

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
MERGE_ROWS = 128  # tokens of one program that merges


def takes_triton_path(tensor: Tensor) -> bool:
    """On a GPU, or where a test has asked for the interpreter; float64 is for the torch path."""
    return (tensor.is_cuda or interpreter.chosen()) and tensor.dtype in _TRITON_DTYPES


def config_for(device: torch.device) -> Config:
    """Raises ValueError for a GPU that no configuration was made for."""
    if device.type != "cuda":
        return CONFIGS["interpreter"]
    name = f"sm{torch.cuda.get_device_capability(device)[0] * 10}"
    if name not in CONFIGS:
        raise ValueError(f"expected a GPU of {sorted(set(CONFIGS) - {'interpreter'})}, found {name}")
    return CONFIGS[name]


def launch(
    kernel: JITFunction, grid: tuple[int, ...], device: torch.device, *, warps: int, stages: int = 2, **arguments: Any
) -> None:
    """Starts `grid` programs of `kernel`; a CPU device means the interpreter."""
    if device.type == "cuda":
        kernel[grid](**arguments, num_warps=warps, num_stages=stages)
    else:
        interpreter.run(kernel, grid, arguments)


def merge(kernel: JITFunction, parts: Tensor, merged: Tensor, fan: int, **constants: Any) -> None:
    """parts [parts, n, tokens] in groups of `fan`, in order, into merged [groups, n, tokens], rows of any stride."""
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
    """Of a persistent kernel: one per multiprocessor, but no more than there are tiles."""
    if device.type != "cuda":
        return min(interpreter.PROGRAMS, tiles)
    return min(torch.cuda.get_device_properties(device).multi_processor_count, tiles)


def tma_operand(matrix: Tensor) -> Tensor:
    """`matrix` as the tensor memory accelerator can read it, copied and padded with zero columns only if it must be."""
    lanes = _TMA_BYTES // matrix.element_size()
    readable = matrix.stride(1) == 1 and matrix.stride(0) % lanes == 0 and matrix.data_ptr() % _TMA_BYTES == 0
    return matrix if readable else F.pad(matrix, (0, -matrix.shape[1] % lanes)).contiguous()


def row_blocks(matrix: Tensor, tile: Tile) -> TensorDescriptor:
    """Of hidden states: blocks of `tile.rows` by the tile's depth."""
    return TensorDescriptor.from_tensor(matrix, [tile.rows, tile.depth(matrix.element_size())])


def column_blocks(matrix: Tensor, tile: Tile) -> TensorDescriptor:
    """Of a head weight: blocks of `tile.columns` by the tile's depth."""
    return TensorDescriptor.from_tensor(matrix, [tile.columns, tile.depth(matrix.element_size())])
