"""On-policy distillation of a fine-tuned teacher into the model that it was made from."""

import json
from pathlib import Path

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, RolloutConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.sft_stage import SftStage

HERE = Path(__file__).parent
REWARD = "python:right:right"  # measures; distillation does not learn from it

CASCADE = Cascade(
    name="distillation",
    base=BaseModel(hf_config=json.loads((HERE.parent / "model.json").read_text())),
    rollout=RolloutConfig(max_model_len=128, max_num_seqs=64, kv_cache_mib=16, probe_bound=1e-3),
    evaluation=Evaluation(domains=(REWARD,), prompts_per_domain=16, max_new_tokens=16),
    stages=(
        SftStage(
            name="teacher",
            domain="sums",
            data=(str(HERE / "demonstrations.jsonl"),),
            steps=60,
            sequences_per_step=32,
            token_budget=1024,
            optimizer=OptimizerConfig(lr=3e-3),
            checkpoint_every=20,
        ),
        MopdStage(
            name="student",
            parent="base",
            domain="sums",
            data=(str(HERE / "prompts.jsonl"),),
            teachers={REWARD: "teacher"},
            steps=30,
            prompts_per_step=16,
            sampling=Sampling(max_new_tokens=16),
            token_budget=1024,
            optimizer=OptimizerConfig(lr=3e-3),
            checkpoint_every=10,
        ),
    ),
)

if __name__ == "__main__":
    launch(CASCADE)
