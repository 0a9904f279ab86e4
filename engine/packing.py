"""Sequences of different lengths laid end to end (THD) into micro-batches, and values per token laid back.

Everything that belongs to a token rides in the same record: log-probs of other models, advantages, expert
routes (slime#1135: teacher log-probs that were sliced on their own went out of step). Padding is a segment of
its own, so that cumulative lengths always end at the number of tokens (Megatron-LM#4494).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from cascade_rl.engine import sample
from cascade_rl.engine.errors import UserError
from cascade_rl.kernels.linear_logprob import IGNORED
from cascade_rl.moe.router_replay import NOT_CAPTURED


@dataclass(frozen=True)
class MicroBatch:
    """One packed forward pass. Position t of a sequence holds token t and predicts token t + 1.

    input_ids     int64 [1, tokens]
    position_ids  int64 [1, tokens], from 0 in each segment
    targets       int64 [tokens], the next token at every real position, IGNORED (-100) at padding
    loss_mask     bool [tokens]
    cu_seqlens    int32 [segments + 1]; the segments are the sequences and, last, the padding if there is any
    max_seqlen    length of the longest segment
    temperature   float32 [tokens], 1 at padding
    per_token     float32 [tokens] each, 0 at padding
    routes        int64 [tokens, moe_layers, topk], NOT_CAPTURED (-1) at padding; None where routers choose
    index         where each sequence stood in the list that was packed; padding has no entry
    """

    input_ids: Tensor
    position_ids: Tensor
    targets: Tensor
    loss_mask: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    temperature: Tensor
    per_token: Mapping[str, Tensor]
    routes: Tensor | None
    index: tuple[int, ...]

    def to(self, device: torch.device) -> Self:
        """The same micro-batch on `device`."""
        moved = {name: _to(getattr(self, name), device) for name in (field.name for field in fields(self))}
        return replace(self, **moved)


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Mapping):
        return {name: _to(tensor, device) for name, tensor in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value


def pack(
    sequences: Sequence[sample.Sequence], token_budget: int, *, multiple_of: int = 1
) -> list[MicroBatch]:
    """First-fit-decreasing into micro-batches of at most `token_budget` tokens, padding included.

    The same list gives the same micro-batches. Each is padded at its tail to a multiple of `multiple_of`.

    Raises UserError for a sequence longer than the budget, or a budget that is no multiple of `multiple_of`;
    ValueError for a sequence whose arrays disagree in length, or with those of the others in what they hold.
    """
    if token_budget % multiple_of:
        raise UserError(
            f"token_budget must be a multiple of {multiple_of}, to which micro-batches are padded; "
            f"found {token_budget}: set it to {token_budget + -token_budget % multiple_of}"
        )
    for position, sequence in enumerate(sequences):
        _check(position, sequence, sequences[0])
    lengths = [len(sequence.loss_mask) for sequence in sequences]
    return [
        _micro_batch(sequences, index, -sum(lengths[i] for i in index) % multiple_of)
        for index in _first_fit_decreasing(lengths, token_budget)
    ]


def pad_count(
    micro_batches: list[MicroBatch], count: int, like: MicroBatch, *, multiple_of: int = 1
) -> list[MicroBatch]:
    """Appends micro-batches of `multiple_of` padding tokens, built like `like`, up to `count`.

    Data-parallel ranks must run equally many passes: experts are shared by them, and a rank without a pass
    would leave the others waiting. Raises ValueError if there are more than `count`.
    """
    if len(micro_batches) > count:
        raise ValueError(f"expected at most {count} micro-batches, found {len(micro_batches)}")
    return micro_batches + [_padding_only(like, multiple_of)] * (count - len(micro_batches))


def unpack(values: Sequence[Tensor], micro_batches: Sequence[MicroBatch], count: int) -> list[np.ndarray]:
    """The inverse of `pack`: one value per token, [tokens] of each micro-batch -> [n - 1] of each sequence.

    `count` is the length of the list that was packed. Raises ValueError if values, micro-batches and count do
    not fit together.
    """
    unpacked: dict[int, np.ndarray] = {}
    for value, micro_batch in zip(values, micro_batches, strict=True):
        if value.shape != micro_batch.targets.shape:
            raise ValueError(f"expected {list(micro_batch.targets.shape)} values, found {list(value.shape)}")
        segments = np.split(value.detach().cpu().numpy(), micro_batch.cu_seqlens[1:-1].tolist())
        unpacked.update(zip(micro_batch.index, segments, strict=False))  # the padding, last, has no index
    if sorted(unpacked) != list(range(count)):
        raise ValueError(f"expected the micro-batches of {count} sequences, found {len(unpacked)}")
    return [unpacked[i] for i in range(count)]


def packing_efficiency(micro_batches: Sequence[MicroBatch], token_budget: int) -> float:
    """Real tokens divided by what these micro-batches could have held."""
    real = sum(int((micro_batch.targets != IGNORED).sum()) for micro_batch in micro_batches)
    return real / (token_budget * len(micro_batches))


def _check(position: int, sequence: sample.Sequence, first: sample.Sequence) -> None:
    length = len(sequence.token_ids) - 1
    arrays = {"loss_mask": sequence.loss_mask, **sequence.per_token}
    if sequence.routes is not None:
        arrays["routes"] = sequence.routes
    wrong = {name: len(array) for name, array in arrays.items() if len(array) != length}
    if length < 1 or wrong:
        raise ValueError(
            f"sequence {position} has {length + 1} tokens: expected at least 2, and {length} entries in each "
            f"array, found {wrong}"
        )
    if _layout(sequence) != _layout(first):
        raise ValueError(f"sequence {position} holds {_layout(sequence)}, sequence 0 holds {_layout(first)}")


def _layout(sequence: sample.Sequence) -> tuple[list[str], tuple[int, ...] | None]:
    """What all sequences of a batch have in common: names of the values per token, [moe_layers, topk]."""
    return sorted(sequence.per_token), None if sequence.routes is None else sequence.routes.shape[1:]


def _first_fit_decreasing(lengths: list[int], token_budget: int) -> list[list[int]]:
    bins: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if lengths[i] > token_budget:
            raise UserError(
                f"sequence {i} has {lengths[i]} positions, more than token_budget = {token_budget}: "
                "raise token_budget or shorten the sequences"
            )
        fit = next((b for b, free in enumerate(room) if free >= lengths[i]), len(bins))
        if fit == len(bins):
            bins.append([])
            room.append(token_budget)
        bins[fit].append(i)
        room[fit] -= lengths[i]
    return bins


def _micro_batch(sequences: Sequence[sample.Sequence], index: list[int], padding: int) -> MicroBatch:
    packed = [sequences[i] for i in index]
    temperatures = [np.full(len(s.loss_mask), s.temperature) for s in packed]
    names = packed[0].per_token
    routes = [s.routes for s in packed if s.routes is not None]
    segments = [len(s.loss_mask) for s in packed] + [padding] * (padding > 0)

    def join(arrays: list[np.ndarray], dtype: type, fill: int = 0) -> Tensor:
        tail: np.ndarray = np.full((padding, *arrays[0].shape[1:]), fill, dtype)
        return torch.from_numpy(np.concatenate([*arrays, tail], dtype=dtype))

    return MicroBatch(
        input_ids=join([s.token_ids[:-1] for s in packed], np.int64)[None],
        position_ids=torch.from_numpy(np.concatenate([np.arange(n) for n in segments]))[None],
        targets=join([s.token_ids[1:] for s in packed], np.int64, IGNORED),
        loss_mask=join([s.loss_mask for s in packed], np.bool_),
        cu_seqlens=torch.from_numpy(np.cumsum([0, *segments], dtype=np.int32)),
        max_seqlen=max(segments),
        temperature=join(temperatures, np.float32, 1),
        per_token={name: join([s.per_token[name] for s in packed], np.float32) for name in names},
        routes=join(routes, np.int64, NOT_CAPTURED) if routes else None,
        index=tuple(index),
    )


def _padding_only(like: MicroBatch, tokens: int) -> MicroBatch:
    return MicroBatch(
        input_ids=torch.zeros(1, tokens, dtype=torch.int64),
        position_ids=torch.arange(tokens)[None],
        targets=torch.full((tokens,), IGNORED),
        loss_mask=torch.zeros(tokens, dtype=torch.bool),
        cu_seqlens=torch.tensor([0, tokens], dtype=torch.int32),
        max_seqlen=tokens,
        temperature=torch.ones(tokens),
        per_token={name: torch.zeros(tokens) for name in like.per_token},
        routes=None if like.routes is None else torch.full((tokens, *like.routes.shape[1:]), NOT_CAPTURED),
        index=(),
    )
