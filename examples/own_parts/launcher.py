"""An own kind of stage on an own domain."""

import json
from pathlib import Path

from best_of import BestOfStage

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, RolloutConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade

MODEL = json.loads(Path(__file__).parents[1].joinpath("model.json").read_text())
LETTERS = "python-domain:letters:LETTERS"

CASCADE = Cascade(
    name="own_parts",
    base=BaseModel(hf_config=MODEL),
    rollout=RolloutConfig(max_model_len=128, max_num_seqs=64, kv_cache_mib=16, probe_bound=1e-3),
    evaluation=Evaluation(domains=(LETTERS,), prompts_per_domain=16, max_new_tokens=16),
    stages=(
        BestOfStage(
            name="best_of",
            domain=LETTERS,
            data=(f"generate:{LETTERS}",),
            steps=40,
            prompts_per_step=16,
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
