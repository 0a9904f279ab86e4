"""Plain-torch counterparts of the Transformer Engine modules that a layer spec names.

Guarantee: same constructor arguments, same parameter names and shapes, so that one layer spec, one HF name
map and one checkpoint serve CPU and CUDA. Parallel linears are Megatron's own; only norm, grouped experts and
attention are new.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, get_expert_parallel_rng_tracker_name
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.experts import GroupedMLPSubmodules, TEGroupedMLP
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from megatron.core.utils import divide, get_pg_rank, get_pg_size
from torch import Tensor

from cascade_rl.engine.backend.zigzag import in_order, zigzag


def _mark(parameter: torch.nn.Parameter, **marks: bool | int) -> None:
    """Attributes by which Megatron's DDP, optimizer and checkpoints know what a parameter is."""
    for name, mark in marks.items():
        setattr(parameter, name, mark)


class TorchNorm(torch.nn.Module):
    """TENorm: RMSNorm or LayerNorm by config; its parameters are marked for sequence parallelism."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_te_only: Any) -> None:
        super().__init__()
        self.eps, self.zero_centered = eps, config.layernorm_zero_centered_gamma
        initial = torch.zeros if self.zero_centered else torch.ones
        self.weight = torch.nn.Parameter(initial(hidden_size, dtype=config.params_dtype))
        self.bias = None
        if config.normalization == "LayerNorm":
            self.bias = torch.nn.Parameter(torch.zeros(hidden_size, dtype=config.params_dtype))
        for parameter in self.parameters():
            _mark(parameter, sequence_parallel=config.sequence_parallel)

    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, self.weight, self.bias, self.eps, self.zero_centered)


def normalize(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, zero_centered: bool) -> Tensor:
    """RMSNorm without a bias, LayerNorm with one."""
    if zero_centered:  # one more than a small number of bfloat16 is no number of bfloat16
        widened = normalize(x.float(), weight.float() + 1, None if bias is None else bias.float(), eps, False)
        return widened.to(x.dtype)
    if bias is None:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.layer_norm(x, weight.shape, weight, bias, eps)


class TorchLayerNormColumnParallelLinear(ColumnParallelLinear):
    """TELayerNormColumnParallelLinear: layer_norm_weight [, layer_norm_bias], weight [, bias]."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        norm = TorchNorm(config, input_size, config.layernorm_epsilon)
        self.layer_norm_weight = norm.weight
        self.layer_norm_bias = norm.bias
        self.eps, self.zero_centered = norm.eps, norm.zero_centered

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        normed = normalize(x, self.layer_norm_weight, self.layer_norm_bias, self.eps, self.zero_centered)
        return super().forward(normed, *args, **kwargs)


class TorchLinear(torch.nn.Module):
    """TELinear whose weight [outputs, inputs] all tensor parallel ranks have, each for its share of the tokens."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        parallel_mode: str | None,
        config: TransformerConfig,
        init_method: Any,
        bias: bool,
        **_te_only: Any,
    ) -> None:
        super().__init__()
        assert parallel_mode == "duplicated" and not bias
        self.weight = torch.nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))
        if config.perform_initialization:
            init_method(self.weight.data)
        _mark(self.weight, sequence_parallel=config.sequence_parallel)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return F.linear(x, self.weight), None


class _TorchGroupedLinear(torch.nn.Module):
    """TEGroupedLinear: a weight per local expert, `weight0 .. weightN-1`, split over the expert tensor group."""

    cut_dim: int

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config: TransformerConfig,
        init_method: Any,
        bias: bool,
        skip_bias_add: bool,
        is_expert: bool,
        tp_comm_buffer_name: str | None = None,
        pg_collection: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        assert is_expert and not bias and pg_collection is not None
        self.num_gemms, self.use_bias, self.groups = num_gemms, bias, pg_collection
        shape = [output_size, input_size]
        shape[self.cut_dim] = divide(shape[self.cut_dim], get_pg_size(pg_collection.expt_tp))
        # gradients of experts are reduced over their own data parallel group if it differs from the dense one
        separate = (
            config.expert_model_parallel_size > 1
            or config.expert_tensor_parallel_size != config.tensor_model_parallel_size
        )
        for i in range(num_gemms):
            weight = torch.nn.Parameter(torch.empty(shape, dtype=config.params_dtype))
            if config.perform_initialization:
                # the ranks of an expert parallel group hold different experts, which must start from different numbers
                with get_cuda_rng_tracker().fork(get_expert_parallel_rng_tracker_name()):
                    init_method(weight.data)
            _mark(
                weight,
                allreduce=not separate,
                tensor_model_parallel=True,
                partition_dim=self.cut_dim,
                partition_stride=2 if self.cut_dim == 0 and config.gated_linear_unit else 1,
            )
            self.register_parameter(f"weight{i}", weight)

    def forward(self, x: Tensor, tokens_per_expert: list[int]) -> tuple[Tensor, None]:
        """x [tokens, in] sorted by expert -> [tokens, out]."""
        parts = zip(x.split(list(tokens_per_expert)), range(self.num_gemms), strict=True)
        return torch.cat([F.linear(part, getattr(self, f"weight{i}")) for part, i in parts]), None

    def backward_dw(self) -> None: ...

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict | None = None) -> dict:
        """Each expert is one row of a global [experts, out, in] tensor, so that any EP layout can load it."""
        assert metadata is not None
        experts = get_pg_size(self.groups.ep) * self.num_gemms
        first = get_pg_rank(self.groups.ep) * self.num_gemms
        sharded: dict[str, Any] = {}
        for i in range(self.num_gemms):
            local = make_sharded_tensors_for_checkpoint(
                {"weight": getattr(self, f"weight{i}")},
                prefix,
                {"weight": self.cut_dim},
                (*sharded_offsets, (len(sharded_offsets), first + i, experts)),
                tp_group=self.groups.expt_tp,
                dp_cp_group=metadata["dp_cp_group"],
            )
            tensor = local[f"{prefix}weight"]
            tensor.replica_id = (*tensor.replica_id[:2], get_pg_rank(self.groups.expt_dp))
            sharded[f"{prefix}weight{i}"] = tensor
        return sharded


class TorchColumnParallelGroupedLinear(_TorchGroupedLinear):
    cut_dim = 0


class TorchRowParallelGroupedLinear(_TorchGroupedLinear):
    cut_dim = 1


class TorchDotProductAttention(MegatronModule):
    """TEDotProductAttention, causal, with grouped queries: [s, b, n, h], or packed THD [t, n, h].

    Context parallelism needs packed rows; it gathers the keys and values of all ranks.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        **_te_only: Any,
    ) -> None:
        super().__init__(config=config)
        assert attn_mask_type == AttnMaskType.causal
        self.context: Any = pg_collection.cp if config.context_parallel_size > 1 else None
        self.scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
        **_te_only: Any,
    ) -> Tensor:
        if packed_seq_params is None:
            heads_first = [x.permute(1, 2, 0, 3) for x in (query, key, value)]  # [b, n, s, h]
            return self._attend(*heads_first).permute(2, 0, 1, 3).flatten(2)
        borders = packed_seq_params.cu_seqlens_q
        lengths = borders.diff().tolist()
        masks: Sequence[Tensor | None] = [None] * len(lengths)
        if self.context:
            key, value = (self._gathered(x, borders) for x in (key, value))
            masks = self._visible(borders)
        packed = [x.transpose(0, 1).unsqueeze(0) for x in (query, key, value)]  # [1, n, t, h]
        held = [length * query.size(0) // key.size(0) for length in lengths]  # tokens of each sequence on this rank
        queries, keys, values = (x.split(parts, 2) for x, parts in zip(packed, (held, lengths, lengths), strict=True))
        attended = torch.cat([*map(self._attend, queries, keys, values, masks)], dim=2)
        return attended.squeeze(0).transpose(0, 1).flatten(1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None = None) -> Tensor:
        grouped = query.size(1) != key.size(1)
        return F.scaled_dot_product_attention(
            query, key, value, visible, is_causal=visible is None, scale=self.scale, enable_gqa=grouped
        )

    def _gathered(self, x: Tensor, borders: Tensor) -> Tensor:
        """[t / context, n, h] -> [t, n, h] in the order of the packed row; the gradient is summed over the ranks."""
        whole = gather_from_sequence_parallel_region(x, tensor_parallel_output_grad=True, group=self.context)
        return in_order(whole, borders, self.context.size())

    def _visible(self, borders: Tensor) -> list[Tensor]:
        """For each sequence, which keys the queries of this rank see: bool [length / context, length]."""
        held = zigzag(borders, self.context.size(), self.context.rank())
        row = torch.arange(int(borders[-1]), device=held.device)
        lengths = borders.diff()
        queries = held.split((lengths // self.context.size()).tolist())
        keys = row.split(lengths.tolist())
        return [key[None] <= query[:, None] for query, key in zip(queries, keys, strict=True)]


class TorchSpecProvider(LocalSpecProvider):
    """Counterpart of TESpecProvider: the class for each role in a layer spec."""

    def fuse_layernorm_and_linear(self) -> bool:
        return True

    def linear(self) -> type:
        return TorchLinear

    def column_parallel_layer_norm_linear(self) -> type:
        return TorchLayerNormColumnParallelLinear

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False, has_residual: bool = False) -> type:
        return TorchNorm

    def core_attention(self) -> type:
        return TorchDotProductAttention

    def grouped_mlp_modules(self, moe_use_grouped_gemm: bool) -> Any:
        assert moe_use_grouped_gemm
        return partial(
            TEGroupedMLP,
            submodules=GroupedMLPSubmodules(
                linear_fc1=TorchColumnParallelGroupedLinear, linear_fc2=TorchRowParallelGroupedLinear
            ),
        )
