"""On-policy distillation of a bigger model into a new small one, over the whole vocabulary. Run teacher.py first."""

import json
from pathlib import Path

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, RolloutConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.mopd_stage import MopdStage

EXAMPLES = Path(__file__).parents[1]
TEACHER = "runs/teacher/stages/01_sft/export"
REWARD = "python:right:right"  # measures; distillation does not learn from it

CASCADE = Cascade(
    name="bigger_teacher",
    base=BaseModel(hf_config=json.loads((EXAMPLES / "model.json").read_text()), tokenizer=TEACHER),
    rollout=RolloutConfig(max_model_len=128, max_num_seqs=64, kv_cache_mib=16, probe_bound=1e-3),
    evaluation=Evaluation(domains=(REWARD,), prompts_per_domain=16, max_new_tokens=16),
    stages=(
        MopdStage(
            name="student",
            domain="sums",
            data=(str(EXAMPLES / "distillation/prompts.jsonl"),),
            teachers={REWARD: TEACHER},
            objective="exact",
            steps=40,
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
