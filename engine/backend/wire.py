"""How the bytes of a refit pass between two processes: by NCCL or gloo, or through memory that both map.

Decided by the device alone: a worker of vLLM has no `backend()`.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, ProcessGroupNCCL, Store

STORAGE_DEVICE = 6  # place of the card's number among the arguments of torch's rebuild_cuda_tensor


def whereabouts(device: torch.device) -> tuple[str, str]:
    """The card and the node of this process. On the CPU the memory of a host is one card."""
    node = socket.gethostname()
    if device.type == "cpu":
        return node, node
    return f"{node} {torch.cuda.get_device_properties(device).uuid}", node


def payload_group(store: Store, rank: int, size: int, device: torch.device, timeout: timedelta) -> Any:
    """A process group for tensors on `device`."""
    if device.type == "cpu":
        return ProcessGroupGloo(store, rank, size, timeout)
    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, rank, size, options)


def settle(device: torch.device) -> None:
    """Waits until this thread's copies are done, so that another process may read the results."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """In the block, this thread's copies wait for those of no other, nor does any wait for them."""
    if device.type == "cpu":
        yield
    else:
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
            yield


def at_rest(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory of the host, from which `device` copies fastest."""
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=device.type == "cuda")


def shared(device: torch.device, rows: int, count: int) -> tuple[Sequence[Tensor], Any]:
    """Rows of `count` bytes that another process can map, and by what."""
    if device.type == "cuda":
        from torch.multiprocessing.reductions import reduce_tensor

        slots = list(torch.empty(rows, count, dtype=torch.uint8, device=device))
        return slots, [reduce_tensor(slot) for slot in slots]
    memory = os.memfd_create("cascade-refit")  # anonymous: a killed rank leaves nothing behind
    path = f"/proc/{os.getpid()}/fd/{memory}"
    return mapped(device, path, rows, count), path


def mapped(device: torch.device, by: Any, rows: int, count: int) -> Sequence[Tensor]:
    """The rows that another process on this card has `shared`."""
    if isinstance(by, str):
        whole = torch.from_file(by, shared=True, size=rows * count, dtype=torch.uint8)
        return whole.view(rows, count).unbind()
    return [rebuild(*on_card(device, arguments)) for rebuild, arguments in by]


def on_card(device: torch.device, arguments: Sequence[Any]) -> list[Any]:
    """Arguments of `rebuild_cuda_tensor` with this process's number of the card: the sender may see more cards, and
    number them otherwise."""
    return [*arguments[:STORAGE_DEVICE], device.index, *arguments[STORAGE_DEVICE + 1 :]]
