"""Gated delta nets (Qwen3-Next, Qwen3.5) on a CPU in float32. vLLM's own kernels for the CPU are for bfloat16 alone."""

import torch
from torch import Tensor
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
from vllm.model_executor.layers.mamba.ops.cpu.causal_conv1d import causal_conv1d_fn_cpu
from vllm.utils.torch_utils import LayerNameType, _resolve_layer_name

from cascade_rl.engine.backend.gated_delta import gated_delta_rule, l2norm

in_bfloat16 = gdn_attention.cpu_gdn_attention_core


def core(mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor, layer_name: LayerNameType) -> None:
    """vLLM's op `cpu_gdn_attention_core`: convolution and delta rule of all sequences of a step, whose states it keeps.

    mixed_qkv [tokens, channels]; b and a [tokens, heads]; writes core_attn_out [tokens, heads, value channels].
    """
    context = get_forward_context()
    if mixed_qkv.dtype == torch.bfloat16 or context.attn_metadata is None:
        return in_bfloat16(mixed_qkv, b, a, core_attn_out, layer_name)
    layer = context.no_compile_layers[_resolve_layer_name(layer_name)]
    step = context.attn_metadata[layer.prefix]
    count = step.num_decodes + step.num_prefills
    slots, starts = step.non_spec_state_indices_tensor[:count], step.non_spec_query_start_loc[: count + 1]
    known = torch.ones(count, dtype=torch.bool) if step.has_initial_state is None else step.has_initial_state[:count]
    conv_states, states = layer.kv_cache
    mixed = causal_conv1d_fn_cpu(
        mixed_qkv[: starts[-1]].T,
        layer.conv1d.weight.squeeze(1),
        None,
        conv_states if is_conv_state_dim_first() else conv_states.mT,
        starts,
        slots,
        known,
    )
    query, key, value = (x.squeeze(0) for x in layer.rearrange_mixed_qkv(mixed.T))
    query, key = (l2norm(x).repeat_interleave(value.size(1) // x.size(1), 1) for x in (query, key))
    decay = -layer.A_log.exp() * torch.nn.functional.softplus(a[: starts[-1]] + layer.dt_bias)
    before = states.view(*states.shape[:2], key.size(2), value.size(2))[slots] * known[:, None, None, None]
    output, after = gated_delta_rule(query, key, value, decay, b[: starts[-1]].sigmoid(), starts.diff().long(), before)
    states[slots] = after.view(count, *states.shape[1:])
    core_attn_out[: starts[-1]] = output
