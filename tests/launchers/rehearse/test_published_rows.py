"""Rows in the place of the data that a launcher names, read as `cascade data check` and the stages read them."""

from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.rehearse.published_rows import ROWS, write_missing_rows
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.source import parse_sources
from cascade_rl.rl_stages.config.stage import OnPolicyStage
from cascade_rl.rl_stages.data.rows import read_rows, scan_rows
from cascade_rl.rl_stages.tasks.check_rows import check_rows
from cascade_rl.rl_stages.tasks.load_tasks import census
from cascade_rl.rl_stages.tasks.pairs import load_pairs

LAUNCHERS = ("cascade2_30b_a3b", "cascade1_8b", "cascade1_8b_thinking", "cascade1_14b")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of launch without any data."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "rows"


def cascade_of(launcher: str) -> Cascade:
    return import_module(f"cascade_rl.launchers.{launcher}").CASCADE


def lines(folder: str) -> list[str]:
    return (Path(folder) / "rows.jsonl").read_text().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_stage_of_a_launcher_finds_its_rows(launcher: str, elsewhere: Path) -> None:
    cascade = cascade_of(launcher)
    new = write_missing_rows(cascade, elsewhere)
    for stage in cascade.stages:
        for path in (source.path for source in parse_sources(stage.data)):
            if isinstance(stage, OnPolicyStage):
                counts = census(new[path])
                assert {domain for _, domain in counts} <= set(stage.trained_domains)
                assert all(count == {"train": 8, "heldout": 4}[split] for (split, _), count in counts.items())
            if isinstance(stage, RewardModelStage):
                assert (len(load_pairs(new[path], split="train", seed=1)), len(lines(new[path]))) == (8, 12)
            elif isinstance(stage, SftStage):
                assert set(check_rows(scan_rows(new[path])).kept) == {"demonstrations"}
            assert not check_rows(scan_rows(new[path])).dropped


@pytest.mark.slow
def test_the_released_sets_have_their_agents(elsewhere: Path) -> None:
    new = write_missing_rows(cascade_of("cascade2_30b_a3b"), elsewhere)

    def agents(path: str) -> Counter[str]:
        return Counter(row["agent_ref"]["name"] for _, row in read_rows(new[path]))

    assert agents("data/Nemotron-Cascade-2-RL-data/multi-domain-RL") == {
        "mcqa_simple_agent": ROWS,
        "workplace_assistant_simple_agent": ROWS,
        "structured_outputs_simple_agent": ROWS,
    }
    assert agents("data/Nemotron-Cascade-2-RL-data/MOPD") == {
        "instruction_following_simple_agent": ROWS,
        "math_with_judge_simple_agent": ROWS,
        "mcqa_simple_agent": ROWS,
        "structured_outputs_simple_agent": ROWS,
        "workplace_assistant_simple_agent": ROWS,
    }
    assert agents("data/cascade2/rlhf") == {"genrm_simple_agent": ROWS}
    assert not any("instruction_id_list" in row for _, row in read_rows(new["data/cascade2/rlhf"]))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["cascade2_30b_a3b", "cascade1_8b"])
def test_every_sft_source_answers_every_short_prompt_in_an_order_of_its_own(launcher: str, elsewhere: Path) -> None:
    cascade = cascade_of(launcher)
    new = write_missing_rows(cascade, elsewhere)
    stages = [stage for stage in cascade.stages if isinstance(stage, SftStage)]
    taught = [lines(new[source.path]) for stage in stages for source in parse_sources(stage.data)]
    assert len({tuple(sorted(rows)) for rows in taught}) == 1 and len({tuple(rows) for rows in taught}) == len(taught)


def test_prompts_without_thinking_are_taught_where_a_stage_has_them(elsewhere: Path) -> None:
    def instant(launcher: str) -> int:
        new = write_missing_rows(cascade_of(launcher), elsewhere / launcher)
        rows = [row for _, row in read_rows(new["data/Nemotron-Cascade-SFT-Stage-1"])]
        return sum("reasoning_content" not in row["messages"][-1] for row in rows)

    assert (instant("cascade1_8b"), instant("cascade1_8b_thinking")) == (16, 0)


def test_what_is_there_is_left_alone_and_what_is_written_is_the_same_again(elsewhere: Path) -> None:
    cascade = cascade_of("cascade1_8b")
    Path("data/cascade1/math").mkdir(parents=True)
    new = write_missing_rows(cascade, elsewhere)
    again = write_missing_rows(cascade, elsewhere / "again")
    assert "data/cascade1/math" not in new
    assert [lines(folder) for folder in new.values()] == [lines(folder) for folder in again.values()]
    assert new["data/cascade1/code"] == str(elsewhere / "data/cascade1/code")


def alone(launcher: str, stage: str, **changes: Any) -> Cascade:
    """A cascade of one changed stage of a launcher."""
    whole = cascade_of(launcher)
    changed = replace(whole.stage(stage), **changes)
    domains = (*whole.evaluation.domains, "reasoning_gym")
    layouts = {"h100": {stage: whole.layouts["h100"][stage]}}
    evaluation = replace(whole.evaluation, domains=domains)
    return replace(whole, stages=(replace(changed, gate={}),), evaluation=evaluation, layouts=layouts)


def test_generated_sources_and_the_hub_need_no_rows(elsewhere: Path) -> None:
    cascade = alone("cascade1_8b", "math_rl", data=("generate:math", "hf:owner/name"))
    assert write_missing_rows(cascade, elsewhere) == {}


def test_a_domain_without_rows_is_told_if_its_data_are_missing(elsewhere: Path) -> None:
    cascade = alone("cascade1_8b", "math_rl", domain="reasoning_gym")
    with pytest.raises(UserError, match=r"data/cascade1/math: expected data, or a stage of code, .* of reasoning_gym"):
        write_missing_rows(cascade, elsewhere)
    Path("data/cascade1/math").mkdir(parents=True)
    assert write_missing_rows(cascade, elsewhere) == {}
