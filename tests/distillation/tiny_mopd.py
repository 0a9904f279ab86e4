"""The stage of the end-to-end test: `./first` is the student and the maths teacher, `./second` teaches the rest."""

from dataclasses import replace
from pathlib import Path
from runpy import run_path

from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.mopd_stage import MopdStage

TINY = run_path(str(Path(__file__).parents[1] / "rl_stages/tiny_cascade.py"))

MOPD = MopdStage(
    name="mopd",
    domain="general",
    data=("generate:instruction_following", "generate:math"),
    teachers={"instruction_following": "./second", "math": "./first"},
    steps=4,
    prompts_per_step=8,
    sampling=TINY["ANSWER"],
    token_budget=TINY["TOKEN_BUDGET"],
    optimizer=OptimizerConfig(lr=1e-3),
)

if __name__ == "__main__":
    launch(replace(TINY["CASCADE"], base=BaseModel(hf="./first"), stages=(MOPD,)))
