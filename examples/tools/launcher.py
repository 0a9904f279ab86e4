"""Demonstrations of an own multi-turn environment with tools, then GRPO in it."""

import json
from pathlib import Path

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, RolloutConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.sft_stage import SftStage

MODEL = json.loads(Path(__file__).parents[1].joinpath("model.json").read_text())
SHELVES = "python-domain:shelves:SHELVES"

CASCADE = Cascade(
    name="tools",
    base=BaseModel(hf_config=MODEL),
    rollout=RolloutConfig(max_model_len=256, max_num_seqs=64, kv_cache_mib=16, probe_bound=1e-3),
    evaluation=Evaluation(domains=(SHELVES,), prompts_per_domain=16, max_new_tokens=96),
    stages=(
        SftStage(
            name="sft",
            domain="general",
            data=(f"generate:{SHELVES}@0.5",),
            steps=60,
            sequences_per_step=32,
            token_budget=2048,
            optimizer=OptimizerConfig(lr=3e-3),
            checkpoint_every=20,
        ),
        GrpoStage(
            name="rl",
            domain=SHELVES,
            data=(f"generate:{SHELVES}",),
            steps=20,
            prompts_per_step=8,
            rollouts_per_prompt=8,
            sampling=Sampling(max_new_tokens=96, max_turns=3),
            token_budget=2048,
            optimizer=OptimizerConfig(lr=1e-3),
            checkpoint_every=10,
        ),
    ),
)

if __name__ == "__main__":
    launch(CASCADE)
