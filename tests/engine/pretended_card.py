"""A card that is pretended on a CPU: tensors that claim to be on it, and a record of what would go wrong on a real one.

A tensor is on the card if its storage is marked. An op gives marked results for marked arguments. Recorded is, with the
line of the product that asked for it:

    mixes  an op on tensors of the card and of the host, or a collective of NCCL with a tensor of the host
    waits  what makes the host wait for the card: `.item()`, `.cpu()`, `bool()`, an index by a mask

On the host may be, as on a real card, a tensor without dimensions that is only read, and the indices of an index.
"""

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cascade_rl.engine.backend.machine import backend
from cascade_rl.engine.backend.process_groups import control_group

CARD, HOST = torch.device("cuda", 0), torch.device("cpu")
ROOT = str(Path(__file__).resolve().parents[2])
SHIMS = ("cpu_shim.py", "torch_layers.py", "zigzag.py", "ssm.py", "/tests/", "site-packages")
WAITING_CALLS = ("tolist", "item", "__bool__", "__int__", "__float__", "__index__")
WAITING_OPS = ("aten.nonzero", "aten.equal", "aten.masked_select")
# Copies between card and host, and what only looks at a tensor.
FREE = ("aten.copy_", "aten._to_copy", "aten.index", "aten._index_put", "aten.set_", "aten.detach", "aten.alias")
_DEVICE, _IS_CUDA, _IS_CPU = (getattr(Tensor, name).__get__ for name in ("device", "is_cuda", "is_cpu"))


class Card:
    """What is on the pretended card, and what was recorded."""

    def __init__(self) -> None:
        self.storages: dict[int, Any] = {}
        self.mixes: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.watching = True

    def holds(self, tensor: Tensor) -> bool:
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self.storages

    def mark[T](self, found: T) -> T:
        """Kept as well, since the number of a storage that is gone may come again."""
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
                self.storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return found

    def take(self, module: torch.nn.Module) -> None:
        """Puts a model there."""
        self.mark([tensor.data for tensor in (*module.parameters(), *module.buffers())])

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        was, self.watching = self.watching, False
        try:
            yield
        finally:
            self.watching = was


def asked_by() -> str:
    """The innermost line of the product on the stack."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename.startswith(ROOT) and not any(part in frame.filename for part in SHIMS):
            return f"{frame.filename.removeprefix(ROOT)}:{frame.lineno} {frame.line}"
    return "no line of the product"


def _by_shim() -> bool:
    """Where Megatron moves a tensor to the host, the CPU shim only asks for its numbers."""
    return any(
        frame.filename.endswith("cpu_shim.py") and frame.name == "to_host" for frame in traceback.extract_stack()
    )


class _Claims(TorchFunctionMode):
    """Answers where a tensor is, and carries out moves."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (_DEVICE, _IS_CUDA, _IS_CPU):
            there = self.card.holds(args[0])
            return {_DEVICE: CARD if there else HOST, _IS_CUDA: there, _IS_CPU: not there}[func]
        if func in (Tensor.to, Tensor.cuda, Tensor.cpu) and (target := _target(func, args[1:], kwargs)):
            return self._moved(func, target, args, kwargs)
        if args and isinstance(args[0], Tensor) and self.card.holds(args[0]):
            name = getattr(func, "__name__", "")
            if name == "numpy" and not _by_shim():
                self.card.mixes[f"numpy of a tensor of the card: {asked_by()}"] += 1
            if name in WAITING_CALLS:
                self.card.waits[f"{name}: {asked_by()}"] += 1
            if name.startswith("new_") and "device" not in kwargs:
                return self.card.mark(func(*args, **kwargs))
        if _is_card(kwargs.get("device")):
            kwargs |= {"device": HOST, "pin_memory": False} if "pin_memory" in kwargs else {"device": HOST}
            with self.card.unwatched():
                made = func(*args, **kwargs)
            return self.card.mark(made)
        return func(*args, **kwargs)

    def _moved(self, func: Callable, target: torch.device, args: tuple, kwargs: dict) -> Tensor:
        tensor, there = args[0], self.card.holds(args[0])
        dtype = kwargs.get("dtype", next((a for a in args[1:] if isinstance(a, torch.dtype)), tensor.dtype))
        if there and not _is_card(target):
            self.card.waits[f"to the host: {asked_by()}"] += 1
        with self.card.unwatched():
            moved = tensor.to(dtype)
            if there == _is_card(target):
                return self.card.mark(moved) if there else moved
            moved = moved.clone()
        if _is_card(target):
            return self.card.mark(moved)
        self.card.storages.pop(moved.untyped_storage()._cdata, None)
        return moved


def _target(func: Callable, places: tuple, kwargs: dict) -> torch.device | None:
    if func is not Tensor.to:
        return CARD if func is Tensor.cuda else HOST
    named = [place for place in (*places, kwargs.get("device")) if isinstance(place, str | torch.device)]
    return torch.device(named[0]) if named else None


def _is_card(device: Any) -> bool:
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return isinstance(device, str | torch.device) and torch.device(device).type == CARD.type


class _Watch(TorchDispatchMode):
    """Compares where the tensors of each op are."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = kwargs or {}, str(func)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        there = [tensor for tensor in tensors if self.card.holds(tensor)]
        if not self.card.watching:
            return func(*args, **kwargs)
        if name.startswith("c10d"):
            if len(there) < len(tensors) and not _in_control_group(args):
                self.card.mixes[f"{name} of a tensor of the host: {asked_by()}"] += 1
            return func(*args, **kwargs)
        if there and not name.startswith(FREE) and (wrong := self._out_of_place(func, args, tensors)):
            self.card.mixes[f"{name} with a tensor of the host, {list(wrong[0].shape)}: {asked_by()}"] += 1
        if there and name.startswith(WAITING_OPS):
            self.card.waits[f"{name}: {asked_by()}"] += 1
        result = func(*args, **kwargs)
        to_host = name.startswith("aten.copy_") and not self.card.holds(args[0])
        return self.card.mark(result) if there and not to_host else result

    def _out_of_place(self, func: Any, args: tuple, tensors: list[Tensor]) -> list[Tensor]:
        """Tensors of the host that are written, or have dimensions and numbers: autograd makes empty ones by itself."""
        written = [
            tensor
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tree_leaves(value)
            if isinstance(tensor, Tensor)
        ]
        return [
            tensor
            for tensor in tensors
            if not self.card.holds(tensor) and ((tensor.dim() and tensor.numel()) or _among(tensor, written))
        ]


def _among(tensor: Tensor, others: list[Tensor]) -> bool:
    return any(tensor is other for other in others)


def _in_control_group(args: tuple) -> bool:
    names = [group.group_name for group in _groups(args)]
    return names == [control_group().group_name]


def _groups(args: tuple) -> list[Any]:
    scripted = [leaf for leaf in args if isinstance(leaf, torch.ScriptObject)]
    return [dist.ProcessGroup.unbox(leaf) for leaf in scripted if "ProcessGroup" in str(leaf._type())]


def _claim_in_backward(card: Card) -> None:
    """torch takes the mode away while a function that it has handled runs, so also in what `backward()` calls."""
    apply = BackwardCFunction.apply

    def claiming(node: Any, *gradients: Any) -> Any:
        with _Claims(card):
            return apply(node, *gradients)

    BackwardCFunction.apply = claiming  # type: ignore[method-assign]


@contextmanager
def pretended_card() -> Iterator[Card]:
    """This forked process has a card in the block, on which kernels take their torch path. It has joined its ranks."""
    machine, card = backend(), Card()
    was = machine.device
    for name, module in sys.modules.items():
        if name.startswith("cascade_rl.kernels") and hasattr(module, "takes_triton_path"):
            module.takes_triton_path = lambda _: False  # type: ignore[attr-defined]
    _claim_in_backward(card)
    object.__setattr__(machine, "device", CARD)
    torch.cuda.current_device = lambda: CARD  # type: ignore[assignment,return-value]
    try:
        with _Claims(card), _Watch(card):
            yield card
    finally:
        object.__setattr__(machine, "device", was)
