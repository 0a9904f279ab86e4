"""Four stand-in stages as a graph: `sft`, then `math_rl` and what builds on it beside `side_rl`."""

import sys
from pathlib import Path

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade, RolloutConfig
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


def rl(name: str, parent: str) -> GrpoStage:
    answer = Sampling(max_new_tokens=24)
    return GrpoStage(
        name=name, domain="math", data=("generate:math",), steps=2, token_budget=512, sampling=answer, parent=parent
    )


CASCADE = Cascade(
    name="fake",
    base=BaseModel(hf_config=LLAMA),
    rollout=RolloutConfig(max_model_len=64),
    evaluation=Evaluation(domains=("instruction_following", "math"), prompts_per_domain=8, max_new_tokens=24),
    stages=(
        SftStage(name="sft", domain="math", data=("generate:math@0.5",), steps=1, token_budget=512),
        rl("math_rl", "sft"),
        rl("last_rl", "math_rl"),
        rl("side_rl", "sft"),
    ),
)

if __name__ == "__main__":
    launch(CASCADE, stage_command=(sys.executable, str(Path(__file__).parents[1] / "fake_stage.py")))
