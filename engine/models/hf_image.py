"""One memory-mapped safetensors file that many processes read or fill at once.

It serves as the Hugging Face export, which all of the trainer's ranks write, and as the checkpoint that they read. The
layout is plain safetensors: 8 bytes of header length, a JSON header, the tensors without gaps.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cascade_rl.engine.core.errors import UserError

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNMENT = 8

TensorSpec = tuple[torch.dtype, tuple[int, ...]]


class HfImage:
    """The tensors of one safetensors file, each a view of the mapped file.

    A view stays valid for as long as it is referenced, even after the image is dropped or the file is unlinked.
    """

    def __init__(self, path: str | Path, *, shared: bool) -> None:
        """See `create`, `open` and `read`."""
        self.path = Path(path)
        self._entries, start = _read_header(self.path)
        content = max((entry["data_offsets"][1] for entry in self._entries.values()), default=0)
        size = self.path.stat().st_size
        if size != start + content:
            raise UserError(f"expected {start + content} bytes, found {size}: {path} is damaged, get it again")
        self._content = torch.from_file(str(path), shared=shared, size=size, dtype=torch.uint8)[start:]

    @classmethod
    def create(cls, path: str | Path, tensors: Mapping[str, TensorSpec]) -> "HfImage":
        """A new file of the given dtypes and shapes, all zeros. One process creates it, others `open` it."""
        header = _header(tensors)
        content = sum(math.prod(shape) * dtype.itemsize for dtype, shape in tensors.values())
        with open(path, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + content)
        return cls(path, shared=True)

    @classmethod
    def open(cls, path: str | Path) -> "HfImage":
        """To read and write: what one process writes, all others that have the file open see at once."""
        return cls(path, shared=True)

    @classmethod
    def read(cls, path: str | Path) -> "HfImage":
        """To read only: the file need not be writable, and writes to a view never reach it.

        Raises UserError if the file is not a complete safetensors file of floating-point tensors.
        """
        return cls(path, shared=False)

    def view(self, name: str) -> Tensor:
        entry = self._entries[name]
        first, end = entry["data_offsets"]
        return self._content[first:end].view(DTYPES[entry["dtype"]]).view(entry["shape"])

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._entries[name]["shape"])

    def __iter__(self) -> Iterator[str]:
        """Names of the tensors."""
        return iter(self._entries)

    def sync(self) -> None:
        """Returns when everything that any process has written is on the disk."""
        with open(self.path, "rb+") as file:
            os.fsync(file.fileno())


def read_checkpoint(folder: str | Path) -> dict[str, HfImage]:
    """For each tensor of a Hugging Face model folder, one file or a sharded index, the image that holds it."""
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        image = HfImage.read(folder / "model.safetensors")
        return dict.fromkeys(image, image)
    files: dict[str, str] = json.loads(index.read_text())["weight_map"]
    images = {name: HfImage.read(folder / name) for name in set(files.values())}
    return {tensor: images[name] for tensor, name in files.items()}


def _header(tensors: Mapping[str, TensorSpec]) -> bytes:
    """The JSON header, widest dtypes first so that every tensor is aligned to its own element size."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda item: (-item[1][0].itemsize, item[0])):
        end = offset + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % ALIGNMENT)


def _read_header(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """The header without its metadata, and where the tensors begin."""
    if not path.is_file():
        raise UserError(f"no such file: {path}. Name a model folder that has safetensors weights")
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if 8 + length > path.stat().st_size:
            raise UserError(f"expected a safetensors file at {path}, found something else: get it again")
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    for name, entry in entries.items():
        if entry["dtype"] not in DTYPES:
            raise UserError(f"{name} in {path} has dtype {entry['dtype']}; supported are {', '.join(DTYPES)}")
    return entries, 8 + length
