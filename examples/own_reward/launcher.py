"""GRPO with a reward of one's own, on rows of one's own."""

import json
from pathlib import Path

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, RolloutConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage

HERE = Path(__file__).parent
REWARD = "python:reward:short_and_right"

CASCADE = Cascade(
    name="own_reward",
    base=BaseModel(hf_config=json.loads((HERE.parent / "model.json").read_text())),
    rollout=RolloutConfig(max_model_len=128, max_num_seqs=64, kv_cache_mib=16, probe_bound=1e-3),
    evaluation=Evaluation(domains=(REWARD,), prompts_per_domain=16, max_new_tokens=16),
    stages=(
        GrpoStage(
            name="rl",
            domain=REWARD,
            data=(str(HERE / "rows.jsonl"),),
            heldout=(str(HERE / "heldout.jsonl"),),
            steps=30,
            prompts_per_step=8,
            rollouts_per_prompt=8,
            sampling=Sampling(max_new_tokens=16),
            score_truncated=True,
            token_budget=1024,
            optimizer=OptimizerConfig(lr=1e-2),
            checkpoint_every=10,
        ),
    ),
)

if __name__ == "__main__":
    launch(CASCADE)
