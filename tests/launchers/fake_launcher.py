"""A launcher file whose stages are stand-ins: `fake_stage.py` under the real launcher."""

import sys
from pathlib import Path

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.sft_stage import SftStage

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
}

CASCADE = Cascade(
    name="fake",
    nproc=2,
    base=BaseModel(hf_config=LLAMA),
    rollout=RolloutConfig(max_model_len=64),
    evaluation=Evaluation(domains=("instruction_following", "math"), prompts_per_domain=8, max_new_tokens=24),
    stages=(
        SftStage(
            name="sft",
            domain="math",
            data=("generate:math@0.5",),
            steps=3,
            token_budget=512,
            gate={"math": 0.1},
        ),
        GrpoStage(
            name="math_rl",
            domain="math",
            data=("generate:math",),
            steps=6,
            token_budget=512,
            sampling=Sampling(max_new_tokens=24),
        ),
    ),
)

if __name__ == "__main__":
    launch(CASCADE, stage_command=(sys.executable, str(Path(__file__).with_name("fake_stage.py"))))
