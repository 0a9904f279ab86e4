"""The stage of the end-to-end test: `./taught` is the model that starts, `tasks.jsonl` has its repositories."""

from dataclasses import replace
from pathlib import Path
from runpy import run_path

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage

TINY = run_path(str(Path(__file__).parents[1] / "tiny_cascade.py"))["CASCADE"]

TURNS = 4  # an episode that goes as it was taught has three
ANSWER = Sampling(max_new_tokens=110, max_turns=TURNS)
AGENTIC = GrpoStage(
    name="swe_agentic_rl",
    domain="swe_agentic",
    data=("tasks.jsonl",),
    steps=2,
    prompts_per_step=4,
    rollouts_per_prompt=4,
    sampling=ANSWER,
    token_budget=1024,
    optimizer=OptimizerConfig(lr=1e-3),
)
CASCADE = replace(
    TINY,
    base=BaseModel(hf="./taught"),
    rollout=replace(TINY.rollout, max_model_len=256),
    evaluation=Evaluation(domains=("swe_agentic",), prompts_per_domain=1, max_new_tokens=ANSWER.max_new_tokens),
    stages=(AGENTIC,),
)

if __name__ == "__main__":
    launch(CASCADE)
