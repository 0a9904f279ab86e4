"""A Bradley-Terry reward model from pairs of answers."""

import json
from pathlib import Path

from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage

HERE = Path(__file__).parent

CASCADE = Cascade(
    name="reward_model",
    base=BaseModel(hf_config=json.loads((HERE.parent / "model.json").read_text())),
    stages=(
        RewardModelStage(
            name="politeness",
            domain="politeness",
            data=(str(HERE / "pairs.jsonl"),),
            heldout=(str(HERE / "heldout.jsonl"),),
            steps=20,
            pairs_per_step=16,
            token_budget=1024,
            optimizer=OptimizerConfig(lr=1e-3),
            checkpoint_every=20,
        ),
    ),
)

if __name__ == "__main__":
    launch(CASCADE)
