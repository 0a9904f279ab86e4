"""The vocabulary as the ops see it: sharded over tensor-parallel ranks, padded at the end, with an id to ignore."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

IGNORED = -100  # the target of padding: it has no log-prob


@dataclass(frozen=True)
class VocabularyShard:
    """The columns of the vocabulary that this rank owns: [first, first + columns), padding left out."""

    first: int
    columns: int
    vocab_size: int
    group: dist.ProcessGroup | None

    @classmethod
    def of(cls, weight: Tensor, vocab_size: int, group: dist.ProcessGroup | None) -> "VocabularyShard":
        """The shard of the rank that holds `weight` [padded vocab / tp, hidden].

        Raises ValueError if vocab_size does not lie in 1..padded vocab.
        """
        rows, ranks = weight.shape[0], 1 if group is None else group.size()
        if not 0 < vocab_size <= rows * ranks:
            raise ValueError(
                f"vocab_size must lie in 1..{rows * ranks} ({rows} weight rows on each of {ranks} "
                f"tensor-parallel ranks), found {vocab_size}"
            )
        first = 0 if group is None else group.rank() * rows
        return cls(first, min(max(vocab_size - first, 0), rows), vocab_size, group)

    @property
    def ranks(self) -> int:
        return 1 if self.group is None else self.group.size()

    def local(self, ids: Tensor) -> Tensor:
        """This rank's column of each of `ids`; -1 for ids of other ranks and for IGNORED."""
        columns = ids - self.first
        return columns.where((columns >= 0) & (columns < self.columns), -1)

    def gather(self, rows: Tensor) -> Tensor:
        """All-gathers [n, tokens] of each rank into [tp, n, tokens], in rank order, which is vocabulary order."""
        if self.group is None:
            return rows[None]
        gathered = rows.new_empty(self.ranks * rows.shape[0], rows.shape[1])
        # torch 2.11 has no all_gather_single
        dist.all_gather(list(gathered.chunk(self.ranks)), rows.contiguous(), group=self.group)
        return gathered.unflatten(0, (self.ranks, -1))

    def sum(self, tensor: Tensor) -> dist.Work | None:
        """Starts an in-place all-reduce over ranks. The caller waits for the work returned; None on a single rank."""
        return None if self.ranks == 1 else dist.all_reduce(tensor, group=self.group, async_op=True)


def check_ids(name: str, ids: Tensor, vocab_size: int) -> None:
    """Raises ValueError for an id that is neither in the vocabulary nor IGNORED."""
    wrong = ids[((ids < 0) | (ids >= vocab_size)) & (ids != IGNORED)]
    if wrong.numel():
        raise ValueError(f"{name} must lie in 0..{vocab_size - 1} or be {IGNORED}, found {int(wrong[0])}")


def check_one_device(**tensors: Tensor | None) -> None:
    """Raises ValueError unless all tensors are on the device of the first. It skips arguments that are None."""
    devices = {name: tensor.device for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    first, *others = devices
    for name in others:
        if devices[name] != devices[first]:
            raise ValueError(f"expected {first} and {name} on one device, found {devices[first]} and {devices[name]}")


def per_token(name: str, value: Tensor | float, tokens: int, like: Tensor) -> Tensor:
    """`value`, one number or [tokens], as [tokens] on the device and in the statistics dtype of `like`.

    Raises ValueError for another shape.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    if not isinstance(value, Tensor):
        return torch.full((tokens,), value, dtype=dtype, device=like.device)
    if value.shape != (tokens,):
        raise ValueError(f"expected {name} [{tokens}] or a number, found {list(value.shape)}")
    return value.detach().to(like.device, dtype)


def scatter_rows(values: Tensor, index: Tensor, tokens: int) -> Tensor:
    """[tokens, ...] with `values` [active, ...] in the rows `index` and zero elsewhere."""
    return values.new_zeros(tokens, *values.shape[1:]).index_copy_(0, index, values)
