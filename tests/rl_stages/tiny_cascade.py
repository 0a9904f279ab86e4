"""The cascade of the end-to-end tests: the stages of launchers/cascade2_tiny.py, a smaller model, far fewer steps."""

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, RolloutConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.sft_stage import SftStage

PATTERN = "M*E"

NEMOTRON_H_SMALLEST = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "vocab_size": 512,
    "hidden_size": 64,
    "hybrid_override_pattern": PATTERN,
    "num_hidden_layers": len(PATTERN),
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "attention_bias": False,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "mamba_hidden_act": "silu",
    "mamba_proj_bias": False,
    "n_groups": 2,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "chunk_size": 32,
    "intermediate_size": 128,
    "mlp_hidden_act": "relu2",
    "mlp_bias": False,
    "use_bias": False,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "layer_norm_epsilon": 1e-5,
    "residual_in_fp32": False,
    "tie_word_embeddings": False,
    "max_position_embeddings": 256,
    "initializer_range": 0.02,
    "torch_dtype": "float32",
}

ANSWER = Sampling(max_new_tokens=24)
NUCLEUS = Sampling(max_new_tokens=24, top_p=0.9, top_k=20)
TOKEN_BUDGET = 1024


def rl_stage(name: str, domain: str, steps: int, sampling: Sampling = ANSWER) -> GrpoStage:
    return GrpoStage(
        name=name,
        domain=domain,
        data=(f"generate:{domain}",),
        steps=steps,
        prompts_per_step=8,
        rollouts_per_prompt=8,
        sampling=sampling,
        token_budget=TOKEN_BUDGET,
        optimizer=OptimizerConfig(lr=1e-3),
    )


CASCADE = Cascade(
    name="tiny",
    base=BaseModel(hf_config=NEMOTRON_H_SMALLEST),
    rollout=RolloutConfig(max_model_len=128, max_num_seqs=64, kv_cache_mib=16, probe_bound=2e-3, deterministic=True),
    evaluation=Evaluation(
        domains=("instruction_following", "math"), prompts_per_domain=32, max_new_tokens=ANSWER.max_new_tokens
    ),
    stages=(
        SftStage(
            name="sft",
            domain="general",
            data=("generate:instruction_following@0.6", "generate:math@0.6"),
            steps=40,
            sequences_per_step=48,
            token_budget=TOKEN_BUDGET,
            optimizer=OptimizerConfig(lr=1e-2, betas=(0.9, 0.98), schedule="cosine", warmup_steps=4, min_lr=1e-3),
            checkpoint_every=10,
        ),
        rl_stage("if_rl", "instruction_following", steps=3),
        rl_stage("math_rl", "math", steps=2, sampling=NUCLEUS),
    ),
)

if __name__ == "__main__":
    launch(CASCADE)
