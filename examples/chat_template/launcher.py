"""Supervised fine-tuning with a chat template of one's own."""

import json
from pathlib import Path

from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.sft_stage import SftStage

HERE = Path(__file__).parent
MODEL = json.loads((HERE.parent / "model.json").read_text())

CASCADE = Cascade(
    name="chat_template",
    base=BaseModel(hf_config=MODEL, chat_template=str(HERE / "mine.jinja")),
    stages=(
        SftStage(
            name="sft",
            domain="general",
            data=(str(HERE / "rows.jsonl"),),
            steps=20,
            sequences_per_step=8,
            token_budget=1024,
            optimizer=OptimizerConfig(lr=3e-3),
            checkpoint_every=20,
        ),
    ),
)

if __name__ == "__main__":
    launch(CASCADE)
