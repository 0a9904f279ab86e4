"""The numbers of Nemotron-Cascade 2's RL stages: arXiv 2603.19220, Tables 8 to 10 and section 4.

    GrpoStage(name="if_rl", domain=..., data=..., token_budget=..., **CASCADE2["if_rl"])

A setting that the paper does not state keeps the default of its stage, or a comment says where the number comes from.
Where table and text disagree, the table is followed, because it has all settings of a stage. The one exception is the
learning rate of MOPD.

`min_answer_tokens`, what a prompt must leave to its answer, is in no table. It follows from the papers' longest prompts
where they state them, in long-context and SWE RL, and is otherwise our choice.

The tables print lengths in thousands ("49K"). Here they are the multiples of 4,096 that round to these.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from cascade_rl.engine.core.rollouts import MAX_TOP_K, Sampling
from cascade_rl.engine.core.settings import OptimizerConfig

Settings = Mapping[str, Any]

CODE_RL_TOP_P = 0.95  # Table 10, which has no top-k: MAX_TOP_K bounds what is recorded for training
LONG_CONTEXT_MAX_TOTAL_TOKENS = 49_152  # Table 9
SWE_AGENTLESS_MAX_TOTAL_TOKENS = 98_304  # section 4, on SWE RL
SWE_AGENTIC_MAX_TOTAL_TOKENS = 262_144  # likewise
SWE_AGENTIC_MAX_TURNS = 200  # likewise

# Tables 8 and 9 print Adam for multi-domain and long-context RL and AdamW for the others. Without weight decay they are
# the same. The paper states neither weight decay nor clip, and a warm-up only for agentic SWE, without its first rate.
# These, and the defaults of OptimizerConfig, are those of NeMo-RL's recipe for the base model: NVIDIA-NeMo/RL,
# examples/nemo_gym/grpo_nanov3.yaml.
OPTIMIZER = OptimizerConfig(lr=3e-6, warmup_steps=10, warmup_init_lr=3e-7, betas=(0.9, 0.95))
BATCH: Settings = {
    "prompts_per_step": 128,
    "rollouts_per_prompt": 16,
    "optimizer": OPTIMIZER,
    "normaliser": "prompt",  # Eq. 1, in all GRPO stages
    "kl_coefficient": 0.0,
    "sequence_error_bound": 2.0,  # seq_logprob_error_threshold of NeMo-RL's recipe; the paper has none
}


def answers(max_new_tokens: int, temperature: float = 1.0) -> Sampling:
    return Sampling(max_new_tokens=max_new_tokens, temperature=temperature, top_p=1.0)


def within(max_total_tokens: int, temperature: float = 1.0) -> Sampling:
    """Answers bounded by the total of prompt and answer."""
    return replace(answers(max_total_tokens, temperature), max_total_tokens=max_total_tokens)


CASCADE2: Mapping[str, Settings] = MappingProxyType(
    {
        # Table 8; dynamic filtering and thinking: section 4.2
        "if_rl": {
            **BATCH,
            "steps": 180,
            "sampling": answers(49_152),
            "min_answer_tokens": 32_768,
            "overlong": "penalty",
            "dynamic_filtering": True,
            "thinking_fraction": 1.0,
        },
        # Table 8
        "multi_domain_rl": {
            **BATCH,
            "steps": 70,
            "sampling": answers(49_152),
            "min_answer_tokens": 32_768,
            "overlong": "filter",
        },
        # Table 8 and section 4.4
        "mopd": {
            "steps": 52,  # text: converges after 40 to 50
            "prompts_per_step": 128,
            "rollouts_per_prompt": 4,  # text: 512 prompts x 1 in later runs
            "sampling": answers(98_304),
            "min_answer_tokens": 65_536,
            "importance_low": 0.5,
            "importance_high": 2.0,
            # Text: 2e-6 after a warm-up. Table 8: 3e-6, without a warm-up. The text is followed, because it has both.
            "optimizer": OptimizerConfig(lr=2e-6, warmup_steps=30, warmup_init_lr=2e-7, betas=(0.9, 0.95)),
        },
        # Table 9
        "rlhf": {
            **BATCH,
            "steps": 25,  # text: about 30
            "sampling": answers(16_384),
            "min_answer_tokens": 16_384,
            "kl_coefficient": 0.03,
            "overlong": "filter",  # text: "without overlong filtering"
            "thinking_fraction": 1.0,
        },
        # Table 9
        "long_context_rl": {
            **BATCH,
            "steps": 30,
            "sampling": within(LONG_CONTEXT_MAX_TOTAL_TOKENS),
            "min_answer_tokens": 16_384,  # so that prompts have at most 32K tokens
            "overlong": "filter",  # text: without overlong filtering
        },
        # Table 10
        "code_rl": {
            **BATCH,
            "steps": 22,
            "sampling": replace(answers(118_784), top_p=CODE_RL_TOP_P, top_k=MAX_TOP_K),
            "min_answer_tokens": 98_304,
            "overlong": "filter",
            "thinking_fraction": 1.0,
        },
        # Section 4, on SWE RL
        "swe_agentless_rl": {
            **BATCH,
            "steps": 50,  # the paper: 40 to 50
            "sampling": within(SWE_AGENTLESS_MAX_TOTAL_TOKENS),
            "min_answer_tokens": 32_768,
            "min_best_reward": 0.5,
            "wrong_format_reward": -1.0,  # Cascade 1 (arXiv 2512.13607), Eq. 2
            "thinking_fraction": 1.0,
        },
        # Section 4, on SWE RL: the warm-up has 10 steps. It states neither the steps of the stage, which are missing
        # here, nor the shape of the decay
        "swe_agentic_rl": {
            **BATCH,
            "prompts_per_step": 16,
            "rollouts_per_prompt": 64,
            "sampling": replace(within(SWE_AGENTIC_MAX_TOTAL_TOKENS, temperature=0.8), max_turns=SWE_AGENTIC_MAX_TURNS),
            "min_answer_tokens": 131_072,
            "optimizer": replace(OPTIMIZER, min_lr=0.0, schedule="linear"),
        },
    }
)
