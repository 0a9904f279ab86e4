"""Four stages of the tiny cascade on two domains: SFT, RL on instruction following, RL on maths, and distillation.

    nemo-run launchers/cascade2_short.py

A shorter version of `cascade2_tiny.py`: four stages instead of twelve, minutes instead of half an hour.
"""

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, RolloutConfig
from cascade_rl.launchers.cascade2_tiny import NEMOTRON_H_TINY, TOKEN_BUDGET, grpo
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.sft_stage import SftStage

DOMAINS = ("instruction_following", "math")
SAMPLING = Sampling(max_new_tokens=40)

CASCADE = Cascade(
    name="cascade2_short",
    base=BaseModel(hf_config=NEMOTRON_H_TINY | {"vocab_size": 512}),
    rollout=RolloutConfig(max_model_len=256, max_num_seqs=256, kv_cache_mib=128, probe_bound=2e-3, deterministic=True),
    evaluation=Evaluation(domains=DOMAINS, prompts_per_domain=256, max_new_tokens=SAMPLING.max_new_tokens),
    stages=(
        SftStage(
            name="sft",
            domain="general",
            data=tuple(f"generate:{domain}@0.6" for domain in DOMAINS),
            steps=480,
            sequences_per_step=48,
            token_budget=TOKEN_BUDGET,
            nproc=2,  # no engine runs during SFT
            optimizer=OptimizerConfig(
                lr=4e-3, min_lr=4e-4, schedule="cosine", warmup_steps=10, betas=(0.9, 0.98), weight_decay=0.1
            ),
            checkpoint_every=40,
        ),
        grpo("if_rl", "instruction_following", 25, sampling=SAMPLING),
        grpo("math_rl", "math", 40, sampling=SAMPLING),
        MopdStage(
            name="mopd",
            domain="general",
            data=tuple(f"generate:{domain}" for domain in DOMAINS),
            teachers=dict.fromkeys(DOMAINS, "best"),
            steps=8,
            prompts_per_step=64,
            sampling=SAMPLING,
            token_budget=TOKEN_BUDGET,
            optimizer=OptimizerConfig(lr=6e-4, warmup_steps=2),
        ),
    ),
)

if __name__ == "__main__":
    launch(CASCADE)
