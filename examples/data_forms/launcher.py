"""Supervised fine-tuning on a saved data set, whose columns are mapped."""

import json
from pathlib import Path

from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.sft_stage import SftStage

HERE = Path(__file__).parent

CASCADE = Cascade(
    name="data_forms",
    base=BaseModel(hf_config=json.loads((HERE.parent / "model.json").read_text())),
    stages=(
        SftStage(
            name="sft",
            domain="products",
            data=(str(HERE / "saved"),),
            columns={"prompt": "question", "completion": "solution.text"},
            steps=20,
            sequences_per_step=16,
            token_budget=1024,
            optimizer=OptimizerConfig(lr=3e-3),
            checkpoint_every=20,
        ),
    ),
)

if __name__ == "__main__":
    launch(CASCADE)
