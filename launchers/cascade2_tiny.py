"""A whole cascade on a laptop: SFT, RL on instruction following, RL on maths, and distillation from the best of both.

    nemo-run launchers/cascade2_tiny.py

The model is Nemotron-3-Nano's architecture with 1.0 M parameters (Mamba-2, attention, sigmoid-routed relu² experts),
made on the spot. Only sizes, step counts and learning rates differ from a 30B run: a model this small and this fresh
needs far larger steps than the 3e-6 of the papers.
"""

from cascade_rl.engine.config import OptimizerConfig, RolloutConfig
from cascade_rl.engine.sample import Sampling
from cascade_rl.launchers.cli import launch
from cascade_rl.rl_stages.config import BaseModel, Cascade, Evaluation, GrpoStage, MopdStage, SftStage

PATTERN = "MEM*E"

NEMOTRON_H_TINY = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "vocab_size": 512,
    "hidden_size": 128,
    "hybrid_override_pattern": PATTERN,
    "num_hidden_layers": len(PATTERN),
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "attention_bias": False,
    "mamba_num_heads": 4,
    "mamba_head_dim": 64,
    "mamba_hidden_act": "silu",
    "mamba_proj_bias": False,
    "n_groups": 2,
    "ssm_state_size": 32,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "chunk_size": 32,
    "intermediate_size": 256,
    "mlp_hidden_act": "relu2",
    "mlp_bias": False,
    "use_bias": False,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 128,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "layer_norm_epsilon": 1e-5,
    "residual_in_fp32": False,
    "tie_word_embeddings": False,
    "max_position_embeddings": 512,
    "initializer_range": 0.02,
    "torch_dtype": "float32",
}

ANSWER_TOKENS = 40
TOKEN_BUDGET = 2048

CASCADE = Cascade(
    name="cascade2_tiny",
    base=BaseModel(hf_config=NEMOTRON_H_TINY),
    rollout=RolloutConfig(max_model_len=256, max_num_seqs=256, kv_cache_mib=128, probe_bound=2e-3),
    evaluation=Evaluation(
        domains=("instruction_following", "math"), prompts_per_domain=256, max_new_tokens=ANSWER_TOKENS
    ),
    stages=(
        SftStage(
            name="sft",
            domain="general",
            data=("generate:instruction_following@0.6", "generate:math@0.6"),
            steps=480,
            sequences_per_step=48,
            token_budget=TOKEN_BUDGET,
            optimizer=OptimizerConfig(
                lr=4e-3, min_lr=4e-4, schedule="cosine", warmup_steps=10, betas=(0.9, 0.98), weight_decay=0.1
            ),
            checkpoint_every=40,
        ),
        GrpoStage(
            name="if_rl",
            domain="instruction_following",
            data=("generate:instruction_following",),
            steps=25,
            prompts_per_step=32,
            rollouts_per_prompt=8,
            sampling=Sampling(max_new_tokens=ANSWER_TOKENS),
            token_budget=TOKEN_BUDGET,
            optimizer=OptimizerConfig(lr=6e-4),
        ),
        GrpoStage(
            name="math_rl",
            domain="math",
            data=("generate:math",),
            steps=40,
            prompts_per_step=32,
            rollouts_per_prompt=8,
            sampling=Sampling(max_new_tokens=ANSWER_TOKENS),
            token_budget=TOKEN_BUDGET,
            optimizer=OptimizerConfig(lr=6e-4),
        ),
        MopdStage(
            name="mopd",
            domain="general",
            data=("generate:instruction_following", "generate:math"),
            teachers={"instruction_following": "if_rl", "math": "math_rl"},
            steps=8,
            prompts_per_step=64,
            sampling=Sampling(max_new_tokens=ANSWER_TOKENS),
            token_budget=TOKEN_BUDGET,
            optimizer=OptimizerConfig(lr=6e-4, warmup_steps=2),
        ),
    ),
)

if __name__ == "__main__":
    launch(CASCADE)
