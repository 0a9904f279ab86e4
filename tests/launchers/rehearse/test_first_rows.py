"""Data that are on this machine: the first rows of each domain."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.launchers.rehearse.first_rows import FIRST, write_first_rows
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.data.rows import read_rows
from tests.rl_stages.tiny_cascade import CASCADE


def row(agent: str, number: int) -> dict[str, Any]:
    return {"agent_ref": {"name": agent}, "number": number}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return str(path)


@pytest.fixture
def cascade(tmp_path: Path) -> Cascade:
    many = [row("math_with_judge_simple_agent", number) for number in range(500)]
    few = [row("mcqa_simple_agent", number) for number in range(30)]
    late = [row("mcqa", number) for number in range(30, 500)]
    shown = [{"messages": [], "number": number} for number in range(500)]
    sft = next(stage for stage in CASCADE.stages if isinstance(stage, SftStage))
    rl = next(stage for stage in CASCADE.stages if isinstance(stage, GrpoStage))
    return Cascade(
        name="here",
        base=BaseModel(hf_config={}),
        stages=(
            replace(sft, data=(write(tmp_path / "sft.jsonl", shown), "generate:math"), gate={}),
            replace(
                rl, data=(write(tmp_path / "rl.jsonl", few + many + late), "gone"), domains=("math", "mcqa"), gate={}
            ),
        ),
        evaluation=Evaluation(domains=("math", "mcqa"), prompts_per_domain=1, max_new_tokens=8),
        rollout=RolloutConfig(max_model_len=128),
    )


def test_the_first_rows_of_each_domain_are_taken(cascade: Cascade, tmp_path: Path) -> None:
    found = write_first_rows(cascade, tmp_path / "first")
    shown, asked = (stage.data[0] for stage in cascade.stages)
    assert set(found) == {shown, asked}
    assert [each["number"] for _, each in read_rows(found[shown])] == list(range(FIRST))
    rows = [each for _, each in read_rows(found[asked])]
    numbers = {
        name: [r["number"] for r in rows if r["agent_ref"]["name"].startswith(name)] for name in ("math", "mcqa")
    }
    assert numbers == {"math": list(range(FIRST)), "mcqa": list(range(FIRST))}
    assert Counter(r["agent_ref"]["name"] for r in rows)["mcqa_simple_agent"] == 30
