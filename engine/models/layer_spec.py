"""One layer spec for every model family and both backends; a provider says which class plays each role.

Megatron's own `hybrid_stack_spec` is bound to Transformer Engine at import; this is the same table for any provider.
"""

from copy import copy
from functools import partial
from typing import Any

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import BackendSpecProvider
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec_for_backend
from megatron.core.models.hybrid.hybrid_block import HybridStack, HybridStackSubmodules
from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.multi_latent_attention import MLASelfAttention, MLASelfAttentionSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import (
    MoETransformerLayer,
    TransformerLayer,
    TransformerLayerSubmodules,
)
from torch import Tensor


class DeltaNet(GatedDeltaNet):
    """Megatron's, whose decay is computed in float32 whatever the model's dtype, as in transformers and vLLM."""

    def _compute_g_and_beta(self, A_log: Tensor, dt_bias: Tensor, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        return super()._compute_g_and_beta(A_log.float(), dt_bias.float(), alpha, beta)


def factors(norm: type) -> type:
    """A norm whose weights are its factors, also in a model whose other norms have weights that are added to one."""

    class Norm:
        def __new__(cls, config: TransformerConfig, **kwargs: Any) -> Any:
            config = copy(config)
            config.layernorm_zero_centered_gamma = False
            return norm(config=config, **kwargs)

    Norm.__name__ = f"factors of {norm.__name__}"
    return Norm


class LatentAttention(MLASelfAttention):
    """Megatron's, with the classes of the layer spec. Megatron itself would give queries without a latent a norm."""

    def _resolve_qk_norm_config(self, submodules: MLASelfAttentionSubmodules) -> dict[str, Any]:
        return vars(submodules)


def hybrid_stack_spec(provider: BackendSpecProvider, *, qk_layernorm: bool) -> ModuleSpec:
    """Layers M (Mamba-2), G (gated delta net), * (attention), + (attention by latents), - (MLP) and E (experts).

    Norms are fused into the linear after them, but for + and E, where more than one follows.
    """
    linear_in, linear_out = provider.column_parallel_layer_norm_linear(), provider.row_parallel_linear()
    qk_norm = provider.layer_norm(rms_norm=True, for_qk=True) if qk_layernorm else IdentityOp
    mixer = ModuleSpec(module=MambaMixer, submodules=MambaMixerSubmodules(in_proj=linear_in, out_proj=linear_out))
    delta_net = ModuleSpec(
        module=DeltaNet,
        submodules=GatedDeltaNetSubmodules(
            in_proj=linear_in, out_norm=factors(provider.layer_norm(rms_norm=True)), out_proj=linear_out
        ),
    )
    attention = ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=linear_in,
            core_attention=provider.core_attention(),
            linear_proj=linear_out,
            q_layernorm=qk_norm,
            k_layernorm=qk_norm,
        ),
    )
    latent_attention = ModuleSpec(
        module=LatentAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=MLASelfAttentionSubmodules(
            linear_q_proj=provider.column_parallel_linear(),
            linear_q_down_proj=provider.linear(),
            linear_q_up_proj=provider.column_parallel_linear(),
            linear_kv_down_proj=provider.linear(),
            linear_kv_up_proj=provider.column_parallel_linear(),
            core_attention=provider.core_attention(),
            linear_proj=linear_out,
            q_layernorm=provider.layer_norm(rms_norm=True, for_qk=True),
            kv_layernorm=provider.layer_norm(rms_norm=True, for_qk=True),
        ),
    )
    mlp = partial(MLP.as_mlp_submodule, submodules=MLPSubmodules(linear_fc1=linear_in, linear_fc2=linear_out))
    # the number of experts comes from the config; here it only selects experts over a dense MLP
    experts = get_moe_module_spec_for_backend(provider, num_experts=1, moe_grouped_gemm=True)
    return ModuleSpec(
        module=HybridStack,
        submodules=HybridStackSubmodules(
            mamba_layer=ModuleSpec(
                module=MambaLayer,
                submodules=MambaLayerSubmodules(mixer=mixer, mamba_bda=get_bias_dropout_add),
            ),
            gdn_layer=ModuleSpec(
                module=TransformerLayer,
                submodules=TransformerLayerSubmodules(self_attention=delta_net, self_attn_bda=get_bias_dropout_add),
            ),
            attention_layer=ModuleSpec(
                module=TransformerLayer,
                submodules=TransformerLayerSubmodules(self_attention=attention, self_attn_bda=get_bias_dropout_add),
            ),
            mla_layer=ModuleSpec(
                module=TransformerLayer,
                submodules=TransformerLayerSubmodules(
                    input_layernorm=provider.layer_norm(rms_norm=True),
                    self_attention=latent_attention,
                    self_attn_bda=get_bias_dropout_add,
                ),
            ),
            mlp_layer=ModuleSpec(
                module=MLPLayer, submodules=TransformerLayerSubmodules(mlp=mlp, mlp_bda=get_bias_dropout_add)
            ),
            moe_layer=ModuleSpec(
                module=MoETransformerLayer,
                submodules=TransformerLayerSubmodules(
                    pre_mlp_layernorm=provider.layer_norm(rms_norm=True),
                    mlp=experts,
                    mlp_bda=get_bias_dropout_add,
                ),
            ),
        ),
    )
