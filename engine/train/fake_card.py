"""A card without memory: torch's fake tensors, and beside them the few numbers that decide shapes.

Fake tensors have shape, dtype and device, and an op on tensors of two devices is an error, as on a real card. Three
things are added, so that a training step of a mixture of experts runs on them:

    known numbers  what is made of known numbers, such as lengths and routes, is computed for real
    rules          a top-k of unknown scores chooses evenly, other ranks have the same numbers, an unknown number that
                   the host reads is 1, and none is 0
    memory         the bytes of all storages of the card that are alive
"""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

CARD = torch.device("cuda", 0)
ALLOCATED = 512  # bytes; torch's allocator gives multiples
MOST_KNOWN = 1 << 24  # numbers of a tensor that are kept
UNREAD = 1  # an unknown number that the host reads
aten, c10d = torch.ops.aten, torch.ops.c10d
EMPTY = (aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.new_empty_strided)
FILLED = (aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones, aten.new_full)
INDEXED = (aten.index, aten.index_put, aten.index_put_)

GATHER_ALL, SCATTER_ALL = c10d.allgather_into_tensor_coalesced_.default, c10d.reduce_scatter_tensor_coalesced_.default


class Memory:
    """Bytes of the storages of the card: those that are alive, and the most that were at once."""

    def __init__(self) -> None:
        self._alive: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        self.held = self.peak = 0

    def note(self, tensor: Tensor) -> None:
        """Counts the tensor's storage until it is gone."""
        storage = tensor.untyped_storage()
        if storage not in self._alive:
            self._alive[storage] = size = [0]
            self.resize(storage, storage.nbytes())
            weakref.finalize(storage, self._change, size, 0)

    def resize(self, storage: torch.UntypedStorage, size: int) -> None:
        """Counts the storage as one of `size` bytes."""
        if storage in self._alive:
            self._change(self._alive[storage], -(-size // ALLOCATED) * ALLOCATED)

    def _change(self, size: list[int], to: int) -> None:
        self.held += to - size[0]
        self.peak = max(self.peak, self.held)
        size[0] = to


class Known:
    """The numbers of fake tensors, as real tensors that share storage where the fake ones do."""

    def __init__(self) -> None:
        self._numbers: Any = WeakTensorKeyDictionary()
        self._overwritten: dict[int, Any] = {}  # storages, kept since their ids may come again

    def of(self, tensor: Tensor) -> Tensor | None:
        if not isinstance(tensor, FakeTensor):
            return tensor
        numbers = self._numbers.get(tensor)
        return None if numbers is None or numbers.untyped_storage()._cdata in self._overwritten else numbers

    def learn(self, tensor: Any, numbers: Any) -> None:
        if isinstance(tensor, FakeTensor) and isinstance(numbers, Tensor):
            self._numbers[tensor] = numbers

    def forget(self, tensor: Tensor) -> None:
        """Unknown numbers were written into it, and so into all tensors that share its storage."""
        if isinstance(tensor, FakeTensor) and (numbers := self._numbers.get(tensor)) is not None:
            self._overwritten[numbers.untyped_storage()._cdata] = numbers.untyped_storage()


class FakeCard(TorchDispatchMode):
    """Entered inside a FakeTensorMode."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.known = Memory(), Known()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in INDEXED:
            args = (args[0], self._positions(args[1]), *args[2:])
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = [self.known.of(tensor) for tensor in tensors]
        if func is aten._local_scalar_dense.default:
            return UNREAD if known[0] is None else _real(known[0].item)
        if func is aten.equal.default and all(numbers is not None for numbers in known):
            return _real(torch.equal, *known)
        if func in (GATHER_ALL, SCATTER_ALL):
            return _one_by_one(func, args)
        made, numbers = self._made(func, args, kwargs, known)
        if numbers is None:
            for tensor in _written(func, args):
                self.known.forget(tensor)
        else:
            tree_map(self.known.learn, made, numbers)
        if func is c10d._allgather_base_.default and known[1] is not None:
            self.known.learn(args[0], _real(_repeated, known[1], args[0].shape))
        for tensor in tree_leaves(made):
            if isinstance(tensor, FakeTensor) and tensor.device == CARD:
                self.memory.note(tensor)
        return made

    def _made(self, func: Any, args: tuple, kwargs: dict, known: list[Tensor | None]) -> tuple[Any, Any]:
        """What the op gives as fake tensors, and the numbers of these."""
        try:
            made = func(*args, **kwargs)
        except DynamicOutputShapeException:
            if (numbers := _numbers(func, args, kwargs, known)) is None:
                raise
            return self._as_fake(args[0].device, numbers), numbers
        few = all(leaf.numel() <= MOST_KNOWN for leaf in tree_leaves(made) if isinstance(leaf, Tensor))
        return made, _numbers(func, args, kwargs, known) if few else None

    def _positions(self, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Masks, whose numbers are known, as the positions where they are true."""
        found: list[Tensor | None] = []
        for index in indices:
            if index is None or index.dtype is not torch.bool:
                found.append(index)
            else:
                found += map(partial(self._as_fake, index.device), _real(_places, self.known.of(index)))
        return found

    def _as_fake(self, device: torch.device, numbers: Tensor) -> Tensor:
        made = torch.empty(numbers.shape, dtype=numbers.dtype, device=device)
        self.known.learn(made, numbers)
        return made


def _places(mask: Tensor | None) -> tuple[Tensor, ...]:
    if mask is None:
        raise RuntimeError("expected a mask of known numbers, found one that depends on unknown ones")
    return mask.nonzero().unbind(1)


def _real[T](function: Callable[..., T], *arguments: Any) -> T:
    with _disable_current_modes():
        return function(*arguments)


def _one_by_one(func: Any, args: tuple) -> Any:
    """The work of a coalesced collective, which torch has not for fake tensors."""
    outputs, inputs, group, *more = args
    if func is GATHER_ALL:
        works = [c10d._allgather_base_(*pair, group, False, -1)[1] for pair in zip(outputs, inputs, strict=True)]
    else:
        works = [c10d._reduce_scatter_base_(*pair, group, *more)[1] for pair in zip(outputs, inputs, strict=True)]
    return works[-1]


def _numbers(func: Any, args: tuple, kwargs: dict, known: list[Tensor | None]) -> Any:
    """The real numbers of what an op gives; None if they are unknown."""
    if func is aten.topk.default and known[0] is None:
        return _real(_even_choice, *args[:2])
    if func is aten.ne.Scalar and known[0] is None and args[1] == 0:
        return _real(lambda: torch.ones(args[0].shape, dtype=torch.bool))
    if func.overloadpacket in FILLED:
        shape, dtype = args[0].shape, args[0].dtype
        known = [_real(lambda: torch.empty(shape, dtype=dtype))]
    unknowable = func.overloadpacket in EMPTY or func.namespace == "c10d"
    if unknowable or torch.Tag.nondeterministic_seeded in func.tags or any(numbers is None for numbers in known):
        return None
    numbers = iter(known)
    here = {"device": "cpu"} if kwargs.get("device") else {}
    args, kwargs = tree_map(lambda leaf: next(numbers) if isinstance(leaf, Tensor) else leaf, (args, kwargs))
    return _real(lambda: func(*args, **kwargs | here))


def _written(func: Any, args: tuple) -> list[Tensor]:
    written = [
        value
        for argument, value in zip(func._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return [leaf for leaf in tree_leaves(written) if isinstance(leaf, Tensor)]


def _even_choice(scores: Tensor, count: int) -> tuple[None, Tensor]:
    """The values, unknown, and the indices that a top-k of [..., columns] gives."""
    *rows, columns = scores.shape
    chosen = torch.arange(int(np.prod(rows)) * count) % columns
    return None, chosen.view(*rows, count)


def _repeated(part: Tensor, shape: torch.Size) -> Tensor:
    return part.flatten().repeat(shape.numel() // part.numel()).view(shape)


class HostReads(TorchFunctionMode):
    """Answers what the host asks of a fake tensor beside its shape. Entered inside a FakeCard."""

    def __init__(self, card: FakeCard) -> None:
        super().__init__()
        self._card = card

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is Tensor.data_ptr:
            return 0  # aligned
        if func is Tensor.numpy and isinstance(args[0], FakeTensor):
            numbers = self._card.known.of(args[0])
            return np.full(tuple(args[0].shape), UNREAD) if numbers is None else _real(numbers.numpy)
        return func(*args, **(kwargs or {}))
