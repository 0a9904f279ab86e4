"""What the cards of this machine say of themselves. All but `count` and `nccl` need one."""

from itertools import permutations
from typing import Any

import torch

ATTENTION = ("flash", "fused", "unfused")  # in the order in which Transformer Engine prefers them


def count() -> int:
    """The cards that this process sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def nccl() -> str:
    """The version of the NCCL that is loaded, which need not be the one that was installed with torch."""
    return ".".join(map(str, torch.cuda.nccl.version()))


def unreachable() -> list[tuple[int, int]]:
    """Pairs of cards of which the first cannot read the memory of the second."""
    pairs = permutations(range(count()), 2)
    return [(one, other) for one, other in pairs if not torch.cuda.can_device_access_peer(one, other)]


def attention(dtype: torch.dtype, context_parallel: bool) -> str | None:
    """What Transformer Engine would compute the attention of packed rows with; None: it has nothing.

    The shape is that of two rows of 4,096 tokens with 8 heads of 128 in 2 groups.
    """
    shape = {"batch_size": 2, "num_heads": 8, "num_gqa_groups": 2, "max_seqlen_q": 4096, "max_seqlen_kv": 4096}
    heads = {"head_dim_qk": 128, "head_dim_v": 128}
    return next(iter(attention_backends(dtype, context_parallel=context_parallel, **shape, **heads)), None)


def attention_backends(dtype: torch.dtype, **shape: Any) -> list[str]:
    """Those of ATTENTION that Transformer Engine 2.20 allows for packed rows and a causal mask, the one that runs
    first. `shape`: fields of its AttentionParams."""
    from transformer_engine.pytorch.attention.dot_product_attention import utils

    asked = utils.AttentionParams(
        qkv_dtype=dtype, qkv_layout="thd_thd_thd", attn_mask_type="padding_causal", window_size=(-1, 0), **shape
    )
    flash, _, fused, _, unfused, left = utils.get_attention_backend(asked)
    chosen = [name for name, used in zip(ATTENTION, (flash, fused, unfused), strict=True) if used]
    return chosen + [name for name, used in zip(ATTENTION, left, strict=True) if used and name not in chosen]
