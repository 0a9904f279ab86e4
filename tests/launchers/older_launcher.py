"""The launcher of `older_run/`, a run that commit 784e620 wrote: stand-in stages of all kinds, most keys at their
defaults. Where a default changes later, write the old value here: it is what that run meant."""

import sys
from pathlib import Path

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, RolloutConfig, RouterConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import CodeSwitch, EpochFilter, Extension, GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.stage import LengthClip, Plateau

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
ANSWER = Sampling(max_new_tokens=24)

CASCADE = Cascade(
    name="older",
    base=BaseModel(hf_config=LLAMA),
    rollout=RolloutConfig(max_model_len=64),
    evaluation=Evaluation(
        domains=("instruction_following", "math"), prompts_per_domain=8, max_new_tokens=24, unmeasured=("rlhf",)
    ),
    stages=(
        SftStage(
            name="sft",
            domain="general",
            data=("talk.jsonl*0.5", "generate:math@0.5*0.5"),
            steps=3,
            token_budget=512,
            gate={"math": 0.1},
        ),
        GrpoStage(
            name="math_rl",
            domain="math",
            data=("generate:math",),
            steps=4,
            token_budget=512,
            sampling=ANSWER,
            optimizer=OptimizerConfig(lr=1e-5),
            router=RouterConfig(trained=False),
            extensions=(Extension(from_step=2, max_new_tokens=32),),
            epoch_filter=EpochFilter(),
            code_switch=CodeSwitch(reward=-1.0),
            stop_at_length_clip=LengthClip(rate=0.9, window=2),
        ),
        RewardModelStage(name="judge", domain="preference", data=("generate:rlhf",), steps=2, token_budget=512),
        GrpoStage(
            name="rlhf",
            domain="rlhf",
            data=("generate:rlhf",),
            steps=2,
            token_budget=512,
            sampling=ANSWER,
            reward_model=RewardModel(kind="bradley_terry", model="judge", shaped=True),
            stop_at_plateau=Plateau(window=5, gain=0.01),
        ),
        MopdStage(
            name="mopd",
            domain="general",
            data=("generate:math", "generate:instruction_following"),
            teachers={"math": "best", "instruction_following": "sft"},
            steps=6,
            token_budget=512,
            sampling=ANSWER,
        ),
    ),
)

if __name__ == "__main__":
    launch(CASCADE, stage_command=(sys.executable, str(Path(__file__).with_name("fake_stage.py"))))
