"""A small cascade of every kind of stage, whose rewards come from a process, for runs that are killed all the time."""

from dataclasses import replace
from pathlib import Path
from runpy import run_path

from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import Evaluation
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage

TINY = run_path(str(Path(__file__).parents[1] / "rl_stages/tiny_cascade.py"))
DOMAIN = "python:chaos_reward:vowels"
RL = {
    "data": ("rows.jsonl",),
    "prompts_per_step": 8,
    "sampling": TINY["ANSWER"],
    "token_budget": TINY["TOKEN_BUDGET"],
    "optimizer": OptimizerConfig(lr=1e-3),
    "keep_checkpoints": 100,  # and with them every ledger, for the tests to read
}

CASCADE = replace(
    TINY["CASCADE"],
    name="chaos",
    evaluation=Evaluation(domains=(DOMAIN,), prompts_per_domain=16, max_new_tokens=24),
    stages=(
        replace(TINY["CASCADE"].stage("sft"), steps=2, keep_checkpoints=100),
        GrpoStage(name="grpo", domain=DOMAIN, steps=4, rollouts_per_prompt=8, checkpoint_every=2, **RL),
        MopdStage(name="mopd", domain="general", teachers={DOMAIN: "sft"}, steps=2, rollouts_per_prompt=4, **RL),
    ),
)

if __name__ == "__main__":
    launch(CASCADE)
