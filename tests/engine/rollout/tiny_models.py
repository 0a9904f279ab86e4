"""Tiny random models of the families, as an engine gets them: a folder with config.json and an image."""

from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers.core_model_loading import revert_weight_conversion

VOCAB = 448
COMMON = {
    "vocab_size": VOCAB,
    "eos_token_id": 2,
    "max_position_embeddings": 512,
    "hidden_size": 128,
    "head_dim": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.1,
}


def nemotron_h() -> transformers.PreTrainedConfig:
    """Mamba-2, sigmoid-routed squared-ReLU experts, attention: Nemotron-3-Nano in small."""
    return transformers.NemotronHConfig(
        **COMMON,
        architectures=["NemotronHForCausalLM"],
        hybrid_override_pattern="MEM*E",
        mamba_num_heads=4,
        mamba_head_dim=64,
        n_groups=2,
        ssm_state_size=64,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        intermediate_size=128,
        moe_intermediate_size=64,
        moe_shared_expert_intermediate_size=64,
    )


def qwen3_moe() -> transformers.PreTrainedConfig:
    return transformers.Qwen3MoeConfig(
        **COMMON,
        architectures=["Qwen3MoeForCausalLM"],
        num_hidden_layers=2,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        tie_word_embeddings=False,
    )


def qwen3() -> transformers.PreTrainedConfig:
    """With a tied head: its packed copy is one of vLLM's silent defects."""
    return transformers.Qwen3Config(
        **COMMON,
        architectures=["Qwen3ForCausalLM"],
        num_hidden_layers=2,
        intermediate_size=256,
        tie_word_embeddings=True,
    )


def qwen2() -> transformers.PreTrainedConfig:
    return transformers.Qwen2Config(
        **COMMON,
        architectures=["Qwen2ForCausalLM"],
        num_hidden_layers=2,
        intermediate_size=256,
        tie_word_embeddings=False,
    )


def llama() -> transformers.PreTrainedConfig:
    return transformers.LlamaConfig(
        **COMMON,
        architectures=["LlamaForCausalLM"],
        num_hidden_layers=2,
        intermediate_size=256,
        tie_word_embeddings=False,
    )


def glm4_moe() -> transformers.PreTrainedConfig:
    return transformers.Glm4MoeConfig(
        **COMMON,
        architectures=["Glm4MoeForCausalLM"],
        num_hidden_layers=2,
        intermediate_size=256,
        moe_intermediate_size=64,
        n_routed_experts=8,
        num_experts_per_tok=2,
        attention_bias=True,
        use_qk_norm=True,
        num_nextn_predict_layers=0,
    )


FAMILIES = {"nemotron_h": nemotron_h, "qwen3_moe": qwen3_moe, "qwen3": qwen3, "qwen2": qwen2, "llama": llama}


def deepseek_v3() -> transformers.PreTrainedConfig:
    """With the latent and the turning key of DeepSeek-V3: vLLM's kernel for the CPU has no others."""
    sizes = {key: value for key, value in COMMON.items() if key != "head_dim"}
    sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    return transformers.DeepseekV3Config(
        **sizes,
        architectures=["DeepseekV3ForCausalLM"],
        num_hidden_layers=2,
        intermediate_size=256,
        moe_intermediate_size=64,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        routed_scaling_factor=1.0,
        first_k_dense_replace=1,
        q_lora_rank=48,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=32,
        v_head_dim=32,
        num_nextn_predict_layers=0,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
    )


def qwen3_next() -> transformers.PreTrainedConfig:
    """A gated delta net, then gated attention of which a quarter turns. Keys are as wide as values, as vLLM's kernel in
    bfloat16 for the CPU wants them."""
    return transformers.Qwen3NextConfig(
        **COMMON,
        architectures=["Qwen3NextForCausalLM"],
        num_hidden_layers=2,
        full_attention_interval=2,
        intermediate_size=256,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=2,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        tie_word_embeddings=False,
    )


REFITTED = {
    "qwen3_next": qwen3_next,
    "glm4_moe": glm4_moe,
    "deepseek_v3": deepseek_v3,
}  # by test_vllm_refit.py alone: an engine of each for all tests would cost too much


def build(family: str, seed: int) -> transformers.PreTrainedModel:
    """A float32 model in eval mode; what starts constant is randomised too, so that a stale value shows."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config((FAMILIES | REFITTED)[family](), attn_implementation="eager")
    model = model.float()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith(("mixer.D", "dt_bias", "norm.weight", "layernorm.weight")):
                tensor += 0.3 * torch.rand_like(tensor)
            if name.endswith("e_score_correction_bias"):
                tensor += 0.1 * torch.randn_like(tensor)
    return model.eval()


def write_config(family: str, folder: Path) -> Path:
    """A model folder as the engine needs it: config.json alone."""
    folder.mkdir(parents=True, exist_ok=True)
    config = (FAMILIES | REFITTED)[family]()
    config.dtype = "float32"
    config.save_pretrained(folder)
    return folder


def hub_state(model: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's tensors under the names of its published checkpoint."""
    state = revert_weight_conversion(model, model.state_dict())
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    return {
        name.replace("backbone.embedding.", "backbone.embeddings."): tensor.contiguous()
        for name, tensor in state.items()
    }


def write_image(model: transformers.PreTrainedModel, path: Path) -> Path:
    save_file(hub_state(model), path)
    return path


class Reference:
    """transformers in float32 as the oracle. After a call, `router_scores` [tokens, moe layers, experts]
    holds what each router ranked its experts by."""

    def __init__(self, model: transformers.PreTrainedModel):
        self._model = model
        self._routes: torch.Tensor | None = None
        self._scores: list[torch.Tensor] = []
        for module in model.modules():
            if type(module).__name__.lower().endswith("topkrouter"):
                module.register_forward_hook(self._route)

    @property
    def router_scores(self) -> np.ndarray:
        return torch.stack(self._scores, dim=1).numpy()

    def __call__(self, token_ids: np.ndarray, temperature: float = 1.0, routes: np.ndarray | None = None) -> np.ndarray:
        """All log-probs [n - 1, vocab] after temperature, with the experts `routes` [n - 1, layers, topk]."""
        self._scores = []
        self._routes = None if routes is None else torch.from_numpy(routes.astype(np.int64))
        with torch.no_grad():
            logits = self._model(input_ids=torch.as_tensor(token_ids)[None, :-1], use_cache=False).logits[0]
        return torch.log_softmax(logits.float() / temperature, dim=-1).numpy()

    def after(self, older: "Reference", token_ids: np.ndarray, count: int) -> np.ndarray:
        """Log-probs [n - 1 - count, vocab], with keys and values of the first `count` tokens that `older` computed."""
        ids = torch.as_tensor(token_ids)[None]
        with torch.no_grad():
            kept = older._model(input_ids=ids[:, :count], use_cache=True).past_key_values
            logits = self._model(input_ids=ids[:, count:-1], past_key_values=kept).logits[0]
        return torch.log_softmax(logits.float(), dim=-1).numpy()

    def _route(self, router: torch.nn.Module, _inputs: object, output: tuple[torch.Tensor, ...]) -> object:
        logits, _, chosen = output
        sigmoid = hasattr(router, "e_score_correction_bias")
        scores = logits.float().sigmoid() if sigmoid else logits.float().softmax(-1)
        self._scores.append(scores + router.e_score_correction_bias if sigmoid else scores)
        if self._routes is not None:
            chosen = self._routes[:, len(self._scores) - 1]
        weights = scores.gather(-1, chosen)
        return logits, weights / weights.sum(-1, keepdim=True), chosen
