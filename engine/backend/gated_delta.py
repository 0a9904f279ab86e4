"""The gated delta rule in plain torch, over packed sequences: what Triton kernels compute on a GPU.

    S_t = exp(g_t) S_(t-1) + beta_t k_t (v_t - exp(g_t) S_(t-1)^T k_t)^T        o_t = S_t^T q_t / sqrt(key channels)

Yang, Kautz and Hatamizadeh, arXiv 2412.06464, section 3. In a chunk, what a token writes depends on what those before
it wrote: a triangular system, solved for all chunks at once. Between chunks only the state S of each head is passed on.
Each sequence begins a chunk of its own. Letters: c chunk, h head, l position in a chunk, k and v channels.
"""

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
    chunk = min(CHUNK, int(lengths.max()))
    counts = (lengths + chunk - 1) // chunk
    firsts, starts = counts.cumsum(0) - counts, lengths.cumsum(0) - lengths
    places = torch.arange(len(k), device=k.device) + (firsts * chunk - starts).repeat_interleave(lengths)

    def chunked(x: Tensor) -> Tensor:
        """[tokens, h, ...] -> [c, h, l, ...]"""
        padded = torch.zeros(int(counts.sum()) * chunk, *x.shape[1:], dtype=dtype, device=x.device)
        return padded.index_copy(0, places, x.to(dtype)).unflatten(0, (-1, chunk)).transpose(1, 2)

    q, k, v, beta = chunked(q) * q.size(-1) ** -0.5, chunked(k), chunked(v), chunked(beta)[..., None]
    decay = chunked(g).double().cumsum(-1)  # [c, h, l]; of which differences are taken
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=k.device).triu(1)
    # masked before exp: above the diagonal the exponent is positive and may overflow
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill(later, float("-inf"))  # [c, h, l, l]
    between, of_start, to_end = (
        x.exp().to(dtype) for x in (between, decay[..., None], decay[..., -1:, None] - decay[..., None])
    )
    written = torch.linalg.solve_triangular(
        (beta * k) @ k.mT * between, beta * torch.cat((v, of_start * k), -1), upper=False, unitriangular=True
    )
    values, erased = written.split([v.size(-1), k.size(-1)], -1)
    attended, queries, keys = (q @ k.mT) * between, of_start * q, to_end * k

    state = values.new_zeros(len(lengths), *k.shape[1::2], v.size(-1)) if initial is None else initial.to(dtype)
    outputs, order = [], []
    for step in range(int(counts.max())):
        live = (counts > step).nonzero().squeeze(1)
        now, before = firsts[live] + step, state[live]
        new = values[now] - erased[now] @ before
        outputs.append(queries[now] @ before + attended[now] @ new)
        order.append(now)
        state = state.index_copy(0, live, of_start[now, :, -1:] * before + keys[now].mT @ new)
    output = torch.cat(outputs)[torch.cat(order).argsort()]  # [c, h, l, v]
    return output.transpose(1, 2).flatten(0, 1)[places], state


def l2norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / |x| along the last axis, computed in float32: queries and keys before the rule."""
    wide = x.float()
    return (wide * (wide.square().sum(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
