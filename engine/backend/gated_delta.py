"""The gated delta rule in plain torch, over packed sequences: what Triton kernels compute on a GPU.

    S_t = exp(g_t) S_(t-1) + beta_t k_t (v_t - exp(g_t) S_(t-1)^T k_t)^T        o_t = S_t^T q_t / sqrt(key channels)

Yang, Kautz and Hatamizadeh, arXiv 2412.06464, section 3. In a chunk, what a token writes depends on what those before
it wrote: a triangular system, solved for all chunks at once. Between chunks only the state S of each head is passed on.
Each sequence begins a chunk of its own. Letters: c chunk, h head, l position in a chunk, k and v channels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 64


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, lengths: Tensor, initial: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """q and k [tokens, heads, key channels], v [tokens, heads, value channels], g (of the decay, its logarithm) and
    beta [tokens, heads]; lengths int64 [sequences]; initial [sequences, heads, key channels, value channels].

    Returns outputs like v, and the last states like `initial`. Computes in float32, or in float64 if k is.
    """
    dtype = torch.promote_types(k.dtype, torch.float32)
    chunks = _Chunks.of(lengths)
    split = _in_chunks(*(chunks.split(x.to(dtype)) for x in (q, k, v, g, beta)))
    if initial is None:
        initial = k.new_zeros(len(lengths), *k.shape[1:], v.size(-1))
    outputs, last = _pass_on(chunks, split, initial.to(dtype))
    return chunks.join(outputs), last


@dataclass(frozen=True)
class _Chunks:
    """How sequences lie in chunks of `size` tokens: each has `counts` of them, from chunk `firsts` on.

    places  of every token among those of all chunks
    """

    size: int
    counts: Tensor
    firsts: Tensor
    places: Tensor

    @classmethod
    def of(cls, lengths: Tensor) -> "_Chunks":
        size = min(CHUNK, int(lengths.max()))
        counts = (lengths + size - 1) // size
        firsts, starts = counts.cumsum(0) - counts, lengths.cumsum(0) - lengths
        tokens = torch.arange(int(lengths.sum()), device=lengths.device)
        return cls(size, counts, firsts, tokens + (firsts * size - starts).repeat_interleave(lengths))

    def split(self, x: Tensor) -> Tensor:
        """[tokens, h, ...] -> [c, h, l, ...]. What fills a chunk is 0, which changes no state."""
        padded = x.new_zeros(int(self.counts.sum()) * self.size, *x.shape[1:])
        return padded.index_copy(0, self.places, x).unflatten(0, (-1, self.size)).transpose(1, 2)

    def join(self, x: Tensor) -> Tensor:
        """[c, h, l, v] -> [tokens, h, v]"""
        return x.transpose(1, 2).flatten(0, 1)[self.places]


@dataclass(frozen=True)
class _Split:
    """What a chunk is to its state.

    queries   [c, h, l, k], decayed from the chunk's start; keys, decayed to its end
    attended  [c, h, l, l], weights of what the chunk's own tokens write
    values    [c, h, l, v], what they write on an empty state; erased [c, h, l, k], what each reads of the state before
    kept      [c, h, 1, 1], of the state
    """

    queries: Tensor
    keys: Tensor
    attended: Tensor
    values: Tensor
    erased: Tensor
    kept: Tensor


def _in_chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> _Split:
    """All [c, h, l, ...]."""
    # sums of which differences are taken: in float32 a hundred tokens that forget would lose the fifth digit
    decay = g.double().cumsum(-1)
    later = torch.ones(decay.size(-1), decay.size(-1), dtype=torch.bool, device=g.device).triu(1)
    # masked before exp: above the diagonal the exponent is positive and may overflow
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill(later, float("-inf")).exp().to(k.dtype)
    of_start = decay.exp()[..., None].to(k.dtype)
    to_end = (decay[..., -1:] - decay).exp()[..., None].to(k.dtype)
    system, written = (beta[..., None] * k) @ k.mT * between, beta[..., None] * torch.cat((v, of_start * k), -1)
    solved = torch.linalg.solve_triangular(system, written, upper=False, unitriangular=True)
    values, erased = solved.split([v.size(-1), k.size(-1)], -1)
    q = q * q.size(-1) ** -0.5
    return _Split(of_start * q, to_end * k, (q @ k.mT) * between, values, erased, of_start[..., -1:, :])


def _pass_on(chunks: _Chunks, split: _Split, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [c, h, l, v] and the last state of each sequence. The n-th chunks of all sequences are one step."""
    outputs, order = [], []
    for step in range(int(chunks.counts.max())):
        live = (chunks.counts > step).nonzero().squeeze(1)
        now, before = chunks.firsts[live] + step, state[live]
        new = split.values[now] - split.erased[now] @ before
        outputs.append(split.queries[now] @ before + split.attended[now] @ new)
        order.append(now)
        state = state.index_copy(0, live, split.kept[now] * before + split.keys[now].mT @ new)
    return torch.cat(outputs)[torch.cat(order).argsort()], state


def l2norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / |x| along the last axis, computed in float32: queries and keys before the rule."""
    wide = x.float()
    return (wide * (wide.square().sum(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
