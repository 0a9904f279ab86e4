"""The teacher: four layers of twice the width, fine-tuned on sums. Any folder of a model and tokenizer would do."""

import json
from pathlib import Path

from cascade_rl.engine.core.settings import OptimizerConfig, RolloutConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.sft_stage import SftStage

EXAMPLES = Path(__file__).parents[1]
BIGGER = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}

CASCADE = Cascade(
    name="teacher",
    base=BaseModel(hf_config=json.loads((EXAMPLES / "model.json").read_text()) | BIGGER),
    rollout=RolloutConfig(max_model_len=128),
    stages=(
        SftStage(
            name="sft",
            domain="sums",
            data=(str(EXAMPLES / "distillation/demonstrations.jsonl"),),
            steps=60,
            sequences_per_step=32,
            token_budget=1024,
            optimizer=OptimizerConfig(lr=3e-3),
            checkpoint_every=20,
        ),
    ),
)

if __name__ == "__main__":
    launch(CASCADE)
