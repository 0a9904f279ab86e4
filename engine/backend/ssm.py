"""Mamba-2's state-space scan in plain torch, with the state reset at the borders of packed sequences.

Chunked SSD (Dao and Gu, arXiv 2405.21060, section 6): inside a chunk the scan is a masked matrix product,
between chunks only the state [state, head_dim] of each head is passed on. Packed rows need no loop over sequences:
positions of different sequences are masked out of the product, and a state ends with its sequence.
Letters: b batch, c chunk, l and s positions in a chunk, g group, r heads per group, n state, p head_dim.
"""

import torch
import torch.nn.functional as F
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor


def _chunked(x: Tensor, chunk: int, value: float = 0.0) -> Tensor:
    """[b, tokens, ...] -> [b, c, l, ...], the tail padded."""
    pad = -x.size(1) % chunk
    x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, pad), value=value)
    return x.unflatten(1, (-1, chunk))


def ssd_scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk: int, seq_idx: Tensor) -> Tensor:
    """h_t = exp(dt A) h_(t-1) + dt B_t x_t; y_t = C_t h_t, with h = 0 at the start of each sequence.

    x [b, tokens, heads, head_dim], dt [b, tokens, heads] (after softplus), A [heads] (negative),
    B and C [b, tokens, groups, state], seq_idx [b, tokens] (which sequence a token belongs to).
    Returns y [b, tokens, heads, head_dim]; float32 in and out.
    """
    tokens, (heads, head_dim), groups = x.size(1), x.shape[2:], B.size(2)
    seq = _chunked(seq_idx, chunk, value=-1)  # [b, c, l]
    u = _chunked(x * dt[..., None], chunk).unflatten(3, (groups, -1))  # [b, c, l, g, r, p]
    u = u.permute(0, 1, 3, 4, 2, 5)  # [b, c, g, r, l, p]
    decay = _chunked(dt * A, chunk).unflatten(3, (groups, -1))  # [b, c, l, g, r]
    decay = decay.permute(0, 1, 3, 4, 2).cumsum(-1)  # [b, c, g, r, l]
    B = _chunked(B, chunk).transpose(2, 3)  # [b, c, g, l, n]
    C = _chunked(C, chunk).transpose(2, 3)  # [b, c, g, l, n]

    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).tril()
    visible = (seq[..., :, None] == seq[..., None, :]) & causal  # [b, c, l, s]
    log_weight = decay[..., :, None] - decay[..., None, :]  # [b, c, g, r, l, s]
    # masked before exp: above the diagonal the exponent is positive and may overflow
    weight = log_weight.masked_fill(~visible[:, :, None, None], float("-inf")).exp()
    y = (C @ B.transpose(-1, -2))[:, :, :, None].mul(weight) @ u  # [b, c, g, r, l, p]

    last = seq[..., -1]  # [b, c]
    kept = (decay[..., -1:] - decay).exp() * (seq == last[..., None])[:, :, None, None]  # [b, c, g, r, l]
    produced = B.transpose(-1, -2)[:, :, :, None] @ (u * kept[..., None])  # [b, c, g, r, n, p]
    incoming = _carry(produced, decay[..., -1].exp(), last)  # [b, c, g, r, n, p]
    previous = F.pad(last, (1, 0), value=-1)[:, :-1]  # [b, c], the sequence whose state comes in
    reach = decay.exp() * (seq == previous[..., None])[:, :, None, None]  # [b, c, g, r, l]
    y = y + (C[:, :, :, None] @ incoming) * reach[..., None]
    return y.permute(0, 1, 4, 2, 3, 5).reshape(x.size(0), -1, heads, head_dim)[:, :tokens]


def _carry(produced: Tensor, chunk_decay: Tensor, last: Tensor) -> Tensor:
    """The state that enters each chunk, [b, c, g, r, n, p], from what each chunk produced."""
    unbroken = F.pad(last[:, 1:] == last[:, :-1], (1, 0))  # [b, c]
    through = chunk_decay * unbroken[:, :, None, None]  # [b, c, g, r]
    state, states = torch.zeros_like(produced[:, 0]), []
    for c in range(produced.size(1)):
        states.append(state)
        state = state * through[:, c, ..., None, None] + produced[:, c]
    return torch.stack(states, 1)


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor) -> Tensor:
    """Depthwise causal convolution that does not look into the previous sequence of a packed row.

    x [b, tokens, channels], weight [channels, width], bias [channels], seq_idx [b, tokens].
    """
    width = weight.size(1)
    y = x * weight[:, -1]
    for shift in range(1, min(width, x.size(1))):  # a row that is all padding may be shorter
        same = F.pad(seq_idx[:, shift:] == seq_idx[:, :-shift], (shift, 0))  # [b, tokens]
        shifted = F.pad(x[:, :-shift], (0, 0, shift, 0)) * same[..., None]
        y = y + shifted * weight[:, -1 - shift]
    return y if bias is None else y + bias


def split_conv1d_scan(
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    chunk_size: int,
    seq_idx: Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    **fixed: object,
) -> Tensor:
    """mamba_ssm's `mamba_split_conv1d_scan_combined` as MambaMixer calls it with rmsnorm outside.

    zxbcdt [b, tokens, 2 inner + 2 groups state + heads] -> [b, tokens, inner].
    """
    assert headdim is not None and fixed.get("rmsnorm_weight") is None
    batch, tokens, width = zxbcdt.shape
    if seq_idx is None:
        seq_idx = torch.zeros(batch, tokens, dtype=torch.int32, device=zxbcdt.device)
    heads = dt_bias.numel()
    inner = heads * headdim
    grouped = (width - 2 * inner - heads) // 2  # groups * state
    z, xbc, dt = zxbcdt.split([inner, inner + 2 * grouped, heads], -1)
    bias = None if conv1d_bias is None else conv1d_bias.float()
    xbc = F.silu(causal_conv1d(xbc.float(), conv1d_weight.float(), bias, seq_idx))  # summed in float32, as on a GPU
    x, B, C = xbc.split([inner, grouped, grouped], -1)
    x = x.unflatten(-1, (heads, headdim))
    B, C = B.unflatten(-1, (ngroups, -1)), C.unflatten(-1, (ngroups, -1))
    y = ssd_scan(x, F.softplus(dt.float() + dt_bias), A, B, C, chunk_size, seq_idx)
    y = y + x * D.float().view(heads, -1)
    return (y.flatten(-2) * F.silu(z.float())).to(zxbcdt.dtype)


class GroupedRMSNorm(torch.nn.Module):
    """mamba_ssm's RMSNorm over groups of channels, as MambaMixer calls it: the scan has already applied the gate."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = False,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        assert not norm_before_gate
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.eps, self.group_size = eps, group_size or hidden_size

    def forward(self, x: Tensor) -> Tensor:
        grouped = x.float().unflatten(-1, (-1, self.group_size))
        return (F.rms_norm(grouped, (self.group_size,), eps=self.eps).flatten(-2) * self.weight).to(x.dtype)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict | None = None) -> dict:
        assert metadata is not None
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            {"weight": 0},
            sharded_offsets,
            tp_group=self.tp_group,
            dp_cp_group=metadata["dp_cp_group"],
        )
