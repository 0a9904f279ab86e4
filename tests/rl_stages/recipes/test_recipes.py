"""The stages that the recipes give, against the tables of the papers, copied here number by number."""

from collections.abc import Mapping
from typing import Any

import pytest

from cascade_rl.engine.core.rollouts import MAX_TOP_K
from cascade_rl.rl_stages.config.grpo_stage import CodeSwitch, EpochFilter, GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.recipes import cascade1, cascade2

K = 1024
SHARED: dict[str, Any] = {"domain": "math", "data": ("x",), "token_budget": 1}

# prompts, rollouts, answer tokens, lr, warm-up, steps, temperature, KL, overlong, dynamic, thinking, best reward
TABLE_2 = """
if_rl            128 16  49152 3e-6 10 180 1.0 0.00 penalty  yes 1.0 none
multi_domain_rl  128 16  49152 3e-6 10  70 1.0 0.00 filter   no  n/s none
rlhf             128 16  16384 3e-6 10  25 1.0 0.03 filter   no  1.0 none
long_context_rl  128 16  49152 3e-6 10  30 1.0 0.00 filter   no  n/s none
code_rl          128 16 118784 3e-6 10  22 1.0 0.00 filter   no  1.0 none
swe_agentless_rl 128 16  98304 3e-6 10  50 1.0 0.00 penalty  no  1.0 0.5
swe_agentic_rl    16 64 262144 3e-6 10 n/s 0.8 0.00 penalty  no  n/s none
"""

# model, stage, steps of the sub-stages, answers of each (K), temperature of each, overlong of each, prompts, rollouts,
# lr, thinking
TABLE_1 = """
8b  rlhf     800         12       0.6         penalty                 256  8 2e-6   0.5
8b  if_rl   2300,3100    8,8      0.6,0.6     penalty,penalty         256  8 2e-6   0.0
8b  math_rl  190,430,500 24,32,40 1.0,1.0,0.8 filter,penalty,penalty  128  8 2e-6   1.0
8b  code_rl  45,90       44,48    1.0,0.8     penalty,penalty         128  8 4e-6   1.0
8b  swe_rl   30,60       16,16    1.0,1.0     filter,penalty          128 16 2.5e-6 1.0
8t  rlhf     800         12       0.6         penalty                 256  8 2e-6   1.0
8t  if_rl    550,850     8,16     0.6,0.6     penalty,filter          256  8 2e-6   1.0
8t  math_rl  190,430,500 24,32,40 1.0,1.0,0.8 filter,penalty,penalty  128  8 2e-6   1.0
8t  code_rl  64          44       1.2         penalty                 128  8 4e-6   1.0
8t  swe_rl   30,60       16,16    1.0,1.0     filter,penalty          128 16 2.5e-6 1.0
14t rlhf     900         12       0.6         penalty                 256  8 2e-6   1.0
14t if_rl    800,920     8,16     0.6,0.6     penalty,filter          256  8 2e-6   1.0
14t math_rl  120,220     28,40    1.2,1.1     filter,penalty          128  8 2.5e-6 1.0
14t code_rl  64          56       1.0         penalty                 128  8 4e-6   1.0
14t swe_rl   120         16       1.0         filter                  128 16 2.5e-6 1.0
"""
MODELS = {"8b": cascade1.UNIFIED_8B, "8t": cascade1.THINKING_8B, "14t": cascade1.THINKING_14B}
SWITCH = {
    "rlhf": CodeSwitch(reward=-10.0, relative_to="lowest"),
    "math_rl": CodeSwitch(reward=-1.0),
    "code_rl": CodeSwitch(reward=0.0),
}


def stage(name: str, settings: Mapping[str, Any]) -> GrpoStage:
    return GrpoStage(**{"name": name, "steps": 1} | SHARED | dict(settings))


def rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]


@pytest.mark.parametrize("row", rows(TABLE_2), ids=lambda row: row[0])
def test_cascade_2(row: list[str]) -> None:
    name, prompts, rollouts, tokens, lr, warmup, steps, heat, kl, overlong, dynamic, thinking, best = row
    found = stage(name, cascade2.CASCADE2[name])
    assert (found.prompts_per_step, found.rollouts_per_prompt) == (int(prompts), int(rollouts))
    assert (found.sampling.max_new_tokens, found.sampling.temperature) == (int(tokens), float(heat))
    assert (found.sampling.top_p, found.sampling.top_k) == ((0.95, MAX_TOP_K) if name == "code_rl" else (1, 0))
    assert (found.optimizer.lr, found.optimizer.warmup_steps) == (float(lr), int(warmup))
    assert found.optimizer.warmup_init_lr == 3e-7
    assert found.optimizer.betas == (0.9, 0.95)
    assert found.optimizer.schedule == ("linear" if name == "swe_agentic_rl" else "constant")
    assert cascade2.CASCADE2[name].get("steps", "n/s") == (steps if steps == "n/s" else int(steps))
    assert (found.kl_coefficient, found.overlong) == (float(kl), overlong)
    assert found.dynamic_filtering == (dynamic == "yes")
    assert found.thinking_fraction == (None if thinking == "n/s" else float(thinking))
    assert found.min_best_reward == (None if best == "none" else float(best))
    assert found.sequence_error_bound == 2.0
    assert (found.normaliser, found.wrong_format_reward) == ("prompt", -1.0 if name == "swe_agentless_rl" else None)


def test_mopd_of_cascade_2() -> None:
    found = MopdStage(name="mopd", teachers={"math": "sft"}, **SHARED, **cascade2.CASCADE2["mopd"])
    assert (found.steps, found.prompts_per_step, found.rollouts_per_prompt) == (52, 128, 4)
    assert (found.sampling.max_new_tokens, found.sampling.temperature) == (98_304, 1.0)
    assert (found.importance_low, found.importance_high) == (0.5, 2.0)
    optimizer = found.optimizer
    assert (optimizer.lr, optimizer.warmup_init_lr, optimizer.warmup_steps) == (2e-6, 2e-7, 30)
    assert optimizer.betas == (0.9, 0.95)


def test_every_stage_of_the_papers_is_there() -> None:
    assert set(cascade2.CASCADE2) == {row[0] for row in rows(TABLE_2)} | {"mopd"}
    assert {(model, name) for model, stages in MODELS.items() for name in stages} == {
        (row[0], row[1]) for row in rows(TABLE_1)
    }


@pytest.mark.parametrize("row", rows(TABLE_1), ids=lambda row: f"{row[0]} {row[1]}")
def test_cascade_1(row: list[str]) -> None:
    model, name, ends, lengths, heats, overlong, prompts, rollouts, lr, thinking = row
    found = stage(name, MODELS[model][name])
    starts = [0, *map(int, ends.split(","))]
    assert found.steps == starts[-1]
    assert [change.from_step for change in found.extensions] == starts[1:-1]
    for start, end, length, heat, rule in zip(
        starts[:-1], starts[1:], lengths.split(","), heats.split(","), overlong.split(","), strict=True
    ):
        for now in (found.at(start), found.at(end - 1)):
            assert (now.sampling.top_p, now.sampling.top_k) == (0.95, 20 if name == "if_rl" else MAX_TOP_K)
            assert (now.sampling.max_new_tokens, now.sampling.temperature) == (int(length) * K, float(heat))
            assert now.overlong == rule
    assert (found.prompts_per_step, found.rollouts_per_prompt) == (int(prompts), int(rollouts))
    assert (found.optimizer.lr, found.optimizer.betas) == (float(lr), (0.9, 0.95))
    assert (found.thinking_fraction, found.kl_coefficient) == (float(thinking), 0.0)
    assert found.dynamic_filtering == (name == "if_rl")
    assert found.epoch_filter == (EpochFilter() if name == "math_rl" else None)
    assert found.code_switch == SWITCH.get(name)
    assert (found.normaliser, found.wrong_format_reward) == ("prompt", -1.0 if name == "swe_rl" else None)


def test_lengths_of_long_stages() -> None:
    assert cascade2.LONG_CONTEXT_MAX_TOTAL_TOKENS == 48 * K
    assert cascade2.SWE_AGENTLESS_MAX_TOTAL_TOKENS == 96 * K
    assert cascade2.SWE_AGENTIC_MAX_TOTAL_TOKENS == 256 * K
    assert cascade2.CASCADE2["swe_agentic_rl"]["sampling"].max_turns == 200
