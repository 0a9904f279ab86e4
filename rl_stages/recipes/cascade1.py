"""The numbers of Nemotron-Cascade 1's RL stages for its three models: arXiv 2512.13607, section 4 and appendix D.

    GrpoStage(name="math_rl", domain=..., data=..., token_budget=..., **THINKING_14B["math_rl"])

The tables are in appendix D (Tables 14 to 20): RLHF in Table 15, IF-RL in Table 16, Math RL in Table 17, followed by
Code RL and SWE RL. The sub-stages of a table are one stage with `extensions`. The tables have one column for both 8B
models in RLHF, Math RL and SWE RL.

Where table and text disagree, the table is followed. The text (section 4) differs in three points: it has 128 prompts
per step in RLHF and IF-RL; it has about 2000 + 1000 steps (8B) and 500 + 300 steps (8B thinking) of IF-RL; it has
overlong filtering in the whole IF-RL of thinking models. Settings that the paper does not state keep the defaults of
`GrpoStage`.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from cascade_rl.engine.core.rollouts import MAX_TOP_K, Sampling
from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.rl_stages.config.grpo_stage import CodeSwitch, EpochFilter, Extension

Settings = Mapping[str, Any]

TOP_P = 0.95  # every stage: appendix D
IF_RL_TOP_K = 20  # section 4. The paper has no other top-k; MAX_TOP_K bounds what is recorded for training

NORMALISER = "prompt"  # Eq. 1, in every stage


def _optimizer(lr: float) -> OptimizerConfig:
    return OptimizerConfig(lr=lr, betas=(0.9, 0.95))  # AdamW in every stage: appendix D


def _answers(max_new_tokens: int, temperature: float, top_k: int = MAX_TOP_K) -> Sampling:
    return Sampling(max_new_tokens=max_new_tokens, temperature=temperature, top_p=TOP_P, top_k=top_k)


def _rlhf(steps: int, thinking_fraction: float) -> Settings:
    """Table 15; code switch and thinking: section 4."""
    return {
        "steps": steps,
        "prompts_per_step": 256,
        "rollouts_per_prompt": 8,
        "sampling": _answers(12_288, 0.6),
        "optimizer": _optimizer(2e-6),
        "normaliser": NORMALISER,
        "overlong": "penalty",
        "code_switch": CodeSwitch(reward=-10.0, relative_to="lowest"),
        "thinking_fraction": thinking_fraction,
    }


def _if_rl(steps: int, second: Extension, thinking_fraction: float) -> Settings:
    """Table 16; dynamic filtering and thinking: section 4."""
    return {
        "steps": steps,
        "prompts_per_step": 256,
        "rollouts_per_prompt": 8,
        "sampling": _answers(8_192, 0.6, IF_RL_TOP_K),
        "optimizer": _optimizer(2e-6),
        "normaliser": NORMALISER,
        "overlong": "penalty",
        "extensions": (second,),
        "dynamic_filtering": True,
        "thinking_fraction": thinking_fraction,
    }


def _math_rl(steps: int, lr: float, first: Sampling, *extensions: Extension) -> Settings:
    """Table 17; epoch filter and code switch: section 4."""
    return {
        "steps": steps,
        "prompts_per_step": 128,
        "rollouts_per_prompt": 8,
        "sampling": first,
        "optimizer": _optimizer(lr),
        "normaliser": NORMALISER,
        "overlong": "filter",
        "extensions": extensions,
        "epoch_filter": EpochFilter(hard_readmission=0.1, easy_readmission=0.01),
        "code_switch": CodeSwitch(reward=-1.0),
        "thinking_fraction": 1.0,
    }


def _code_rl(steps: int, first: Sampling, *extensions: Extension) -> Settings:
    """Appendix D; code switch: section 4."""
    return {
        "steps": steps,
        "prompts_per_step": 128,
        "rollouts_per_prompt": 8,
        "sampling": first,
        "optimizer": _optimizer(4e-6),
        "normaliser": NORMALISER,
        "overlong": "penalty",
        "extensions": extensions,
        "code_switch": CodeSwitch(reward=0.0),
        "thinking_fraction": 1.0,
    }


def _swe_rl(steps: int, prompt_tokens: int, *extensions: Extension) -> Settings:
    """Appendix D, with prompts of up to `prompt_tokens`; reward of a wrong format: Eq. 2."""
    answers = _answers(16_384, 1.0)
    return {
        "steps": steps,
        "prompts_per_step": 128,
        "rollouts_per_prompt": 16,
        "sampling": replace(answers, max_total_tokens=prompt_tokens + answers.max_new_tokens),
        "min_answer_tokens": answers.max_new_tokens,
        "optimizer": _optimizer(2.5e-6),
        "normaliser": NORMALISER,
        "overlong": "filter",
        "extensions": extensions,
        "wrong_format_reward": -1.0,
        "thinking_fraction": 1.0,
    }


MATH_RL_8B = _math_rl(
    500,
    2e-6,
    _answers(24_576, 1.0),
    Extension(from_step=190, max_new_tokens=32_768, overlong="penalty"),
    Extension(from_step=430, max_new_tokens=40_960, temperature=0.8),
)
SWE_RL_8B = _swe_rl(60, 24_576, Extension(from_step=30, max_new_tokens=16_384, overlong="penalty"))

UNIFIED_8B: Mapping[str, Settings] = MappingProxyType(
    {
        "rlhf": _rlhf(800, thinking_fraction=0.5),
        "if_rl": _if_rl(3100, Extension(from_step=2300, max_new_tokens=8_192), thinking_fraction=0.0),
        "math_rl": MATH_RL_8B,
        # the paper does not state at which step the settings change: half way
        "code_rl": _code_rl(90, _answers(45_056, 1.0), Extension(from_step=45, max_new_tokens=49_152, temperature=0.8)),
        "swe_rl": SWE_RL_8B,
    }
)
THINKING_8B: Mapping[str, Settings] = MappingProxyType(
    {
        "rlhf": _rlhf(800, thinking_fraction=1.0),
        "if_rl": _if_rl(850, Extension(from_step=550, max_new_tokens=16_384, overlong="filter"), thinking_fraction=1.0),
        "math_rl": MATH_RL_8B,
        "code_rl": _code_rl(64, _answers(45_056, 1.2)),
        "swe_rl": SWE_RL_8B,
    }
)
THINKING_14B: Mapping[str, Settings] = MappingProxyType(
    {
        "rlhf": _rlhf(900, thinking_fraction=1.0),
        "if_rl": _if_rl(920, Extension(from_step=800, max_new_tokens=16_384, overlong="filter"), thinking_fraction=1.0),
        "math_rl": _math_rl(
            220,
            2.5e-6,
            _answers(28_672, 1.2),
            Extension(from_step=120, max_new_tokens=40_960, temperature=1.1, overlong="penalty"),
        ),
        "code_rl": _code_rl(64, _answers(57_344, 1.0)),
        "swe_rl": _swe_rl(120, 32_768),
    }
)
