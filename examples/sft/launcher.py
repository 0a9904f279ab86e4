"""Supervised fine-tuning alone, with a validation loss."""

import json
from pathlib import Path

from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.sft_stage import SftStage

HERE = Path(__file__).parent

CASCADE = Cascade(
    name="sft",
    base=BaseModel(hf_config=json.loads((HERE.parent / "model.json").read_text())),
    stages=(
        SftStage(
            name="sft",
            domain="sums",
            data=(str(HERE / "rows.jsonl"),),
            heldout=(str(HERE / "validation.jsonl"),),
            validate_every=10,
            steps=60,
            sequences_per_step=32,
            token_budget=1024,
            optimizer=OptimizerConfig(lr=3e-3, schedule="cosine", warmup_steps=5, min_lr=3e-4),
            checkpoint_every=20,
        ),
    ),
)

if __name__ == "__main__":
    launch(CASCADE)
