"""Packs sequences of different lengths end to end (THD) into micro-batches, and unpacks values per token.

Everything that belongs to a token is in the same record: log-probs of other models, advantages, expert
routes (slime#1135: teacher log-probs that were sliced separately went out of step). A sequence's padding is the
end of its own segment, where no real token sees it, because layers are causal. The padding of the micro-batch is a
segment of its own, so that cumulative lengths always end at the number of tokens (Megatron-LM#4494).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Kept
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.kernels.linear_logprob import IGNORED
from cascade_rl.moe.router_replay import NOT_CAPTURED


@dataclass(frozen=True)
class MicroBatch:
    """One packed forward pass. Position t of a sequence holds token t and predicts token t + 1.

    input_ids     int64 [1, tokens]
    position_ids  int64 [1, tokens], from 0 in each segment
    targets       int64 [tokens], the next token at every real position, IGNORED (-100) at padding
    loss_mask     bool [tokens], False at padding
    cu_seqlens    int32 [segments + 1]; the segments are the padded sequences and, last, the padding if there is any
    max_seqlen    length of the longest segment
    temperature   float32 [tokens], 1 at padding
    per_token     float32 [tokens, ...] each, 0 at padding
    routes        int64 [tokens, moe_layers, topk], NOT_CAPTURED (-1) at padding; None if routers choose
    index         position of each sequence in the global batch; the padding segment has no entry
    kept          int64 [tokens, most kept at one], ids over which log-probs are taken, IGNORED after a token's last.
                  A token without ids has the whole vocabulary, as all tokens have if it is None
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
    kept: Tensor | None = None

    def to(self, device: torch.device) -> Self:
        """The same micro-batch on `device`."""
        moved = {name: _to(getattr(self, name), device) for name in (field.name for field in fields(self))}
        return replace(self, **moved)


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Mapping):
        return {name: _to(tensor, device) for name, tensor in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value


def empty_like(sequence: TrainSequence) -> TrainSequence:
    """A sequence of the same arrays without entries."""
    return replace(
        sequence,
        token_ids=sequence.token_ids[:0],
        loss_mask=sequence.loss_mask[:0],
        per_token={name: values[:0] for name, values in sequence.per_token.items()},
        routes=None if sequence.routes is None else sequence.routes[:0],
        kept=None,
    )


def pack(
    sequences: Sequence[TrainSequence] | Mapping[int, TrainSequence],
    micro_batches: Sequence[Sequence[int]],
    *,
    segment_multiple: int = 1,
    padded_to: int | None = None,
    like: TrainSequence | None = None,
) -> list[MicroBatch]:
    """Micro-batches of a global batch, each given by the indices of its sequences. Of `sequences` only these are read.

    Each sequence is padded to a multiple of `segment_multiple`, and each micro-batch to `padded_to` tokens if
    that is given. A micro-batch without sequences is all padding, so that ranks with less to do join every pass.
    Which values each token has is as in `like`, by default the first sequence of the global batch.

    Raises UserError if `padded_to` is not a multiple of `segment_multiple`; ValueError for a sequence whose arrays
    differ in length, or hold other values than `like`.
    """
    like = like or sequences[0]
    if padded_to and padded_to % segment_multiple:
        raise UserError(
            f"token_budget must be a multiple of {segment_multiple}, to which sequences are padded; "
            f"found {padded_to}: set it to {padded_to + -padded_to % segment_multiple}"
        )
    for position in chain(*micro_batches):
        _check(position, sequences[position], like)
    return [
        _micro_batch([sequences[i] for i in index], index, like, segment_multiple, padded_to) for index in micro_batches
    ]


def unpack(values: Sequence[Tensor], micro_batches: Sequence[MicroBatch]) -> dict[int, np.ndarray]:
    """The inverse of `pack`: values [tokens, ...] of each micro-batch -> index: [n - 1, ...] of each sequence.

    Raises ValueError if values and micro-batches do not match.
    """
    unpacked: dict[int, np.ndarray] = {}
    for value, micro_batch in zip(values, micro_batches, strict=True):
        if value.shape[:1] != micro_batch.targets.shape:
            raise ValueError(f"expected {list(micro_batch.targets.shape)} values, found {list(value.shape)}")
        bounds = pairwise(micro_batch.cu_seqlens.tolist())
        real = (micro_batch.targets != IGNORED).cpu().numpy()
        numbers = value.detach().cpu().numpy()  # one wait for the device
        for i, (start, end) in zip(micro_batch.index, bounds, strict=False):  # the padding segment has no index
            unpacked[i] = numbers[start:end][real[start:end]]
    return unpacked


def _check(position: int, sequence: TrainSequence, like: TrainSequence) -> None:
    length = len(sequence.token_ids) - 1
    arrays = {"loss_mask": sequence.loss_mask, **sequence.per_token}
    if sequence.routes is not None:
        arrays["routes"] = sequence.routes
    if sequence.kept is not None:
        arrays["kept"] = sequence.kept.counts
    wrong = {name: len(array) for name, array in arrays.items() if len(array) != length}
    if length < 1 or wrong:
        raise ValueError(
            f"sequence {position} has {length + 1} tokens: expected at least 2, and {length} entries in each "
            f"array, found {wrong}"
        )
    if _layout(sequence) != _layout(like):
        raise ValueError(f"sequence {position} holds {_layout(sequence)}, sequence 0 holds {_layout(like)}")


def _layout(sequence: TrainSequence) -> tuple[list[str], tuple[int, ...] | None]:
    """What all sequences of a batch must share: names of the values per token, [moe_layers, topk]."""
    return sorted(sequence.per_token), None if sequence.routes is None else sequence.routes.shape[1:]


def _micro_batch(
    packed: Sequence[TrainSequence],
    index: Sequence[int],
    like: TrainSequence,
    segment_multiple: int,
    padded_to: int | None,
) -> MicroBatch:
    segments = [n + -n % segment_multiple for n in (len(s.loss_mask) for s in packed)]
    tokens = padded_to or sum(segments) or segment_multiple
    segments += [tokens - sum(segments)] * (tokens != sum(segments))
    starts = np.cumsum([0, *segments], dtype=np.int32)

    def lay(arrays: list[np.ndarray], dtype: type, fill: int = 0, row: tuple[int, ...] = ()) -> Tensor:
        rows: np.ndarray = np.full((tokens, *row), fill, dtype)
        for start, array in zip(starts, arrays, strict=False):
            rows[start : start + len(array)] = array
        return torch.from_numpy(rows)

    routes = [s.routes for s in packed if s.routes is not None]
    return MicroBatch(
        input_ids=lay([s.token_ids[:-1] for s in packed], np.int64)[None],
        position_ids=torch.from_numpy(np.concatenate([np.arange(n) for n in segments]))[None],
        targets=lay([s.token_ids[1:] for s in packed], np.int64, IGNORED),
        loss_mask=lay([s.loss_mask for s in packed], np.bool_),
        cu_seqlens=torch.from_numpy(starts),
        max_seqlen=max(segments),
        temperature=lay([np.full(len(s.loss_mask), s.temperature) for s in packed], np.float32, 1),
        per_token={
            name: lay([s.per_token[name] for s in packed], np.float32, row=array.shape[1:])
            for name, array in like.per_token.items()
        },
        routes=None if like.routes is None else lay(routes, np.int64, NOT_CAPTURED, like.routes.shape[1:]),
        index=tuple(index),
        kept=_kept(packed, lay),
    )


def _kept(packed: Sequence[TrainSequence], lay: Callable[..., Tensor]) -> Tensor | None:
    most = max([int(s.kept.counts.max()) for s in packed if s.kept is not None], default=0)
    rows = [np.empty((0, most)) if s.kept is None else _ragged(s.kept, most) for s in packed]
    return lay(rows, np.int64, IGNORED, (most,)) if most else None


def _ragged(kept: Kept, most: int) -> np.ndarray:
    rows = np.full((len(kept.counts), most), IGNORED)
    rows[np.arange(most) < kept.counts[:, None]] = kept.ids
    return rows
