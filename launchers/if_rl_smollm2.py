"""IF-RL on real weights: SmolLM2-135M-Instruct learns to follow instructions on a CPU.

    make smollm2 && .venv/bin/nemo-run launchers/if_rl_smollm2.py

`make smollm2` writes the checkpoint that this run starts from, and compares transformers, Megatron and vLLM on it.
The model comes with its own tokenizer and chat template. Results of a run on two cores are in docs/smollm2/.
"""

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, RolloutConfig
from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage

ANSWER_TOKENS = 48

CASCADE = Cascade(
    name="if_rl_smollm2",
    base=BaseModel(hf="build/smollm2-135m-instruct"),
    # float32 rounding alone, through 30 layers and on unlikely tokens, reached 1.1e-4 in measurements here.
    rollout=RolloutConfig(max_model_len=128, max_num_seqs=64, kv_cache_mib=512, probe_bound=5e-4),
    evaluation=Evaluation(domains=("instruction_following",), prompts_per_domain=128, max_new_tokens=ANSWER_TOKENS),
    stages=(
        GrpoStage(
            name="if_rl",
            domain="instruction_following",
            data=("generate:instruction_following",),
            steps=24,
            prompts_per_step=6,
            rollouts_per_prompt=8,
            sampling=Sampling(max_new_tokens=ANSWER_TOKENS),
            token_budget=1024,
            optimizer=OptimizerConfig(lr=5e-5),
            checkpoint_every=6,  # a checkpoint takes 2.1 GB
            keep_checkpoints=1,
        ),
    ),
)

if __name__ == "__main__":
    launch(CASCADE)
