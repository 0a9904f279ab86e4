"""Prompts that are too long for their stage, as a launch finds them in the data."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.launchers.local import prompt_lengths
from cascade_rl.launchers.local.prompt_lengths import overlong_prompts
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from cascade_rl.rl_stages.run.known_data import KnownData

QUESTIONS = [f"What is {number} + 1?" + " Think of the number." * (number // 40 * 12) for number in range(80)]


@pytest.fixture
def cascade(tmp_path: Path) -> Cascade:
    messages = [[{"role": "user", "content": question}] for question in QUESTIONS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row(shown)) + "\n" for shown in messages))
    train_tokenizer(messages, vocab_size=320).save_pretrained(tmp_path / "tokenizer")
    stage = GrpoStage(
        name="rl",
        domain="math",
        data=(str(tmp_path / "rows.jsonl"),),
        steps=1,
        token_budget=64,
        sampling=Sampling(16),
        min_answer_tokens=8,
    )
    return Cascade(
        name="long",
        base=BaseModel(hf_config={}, tokenizer=str(tmp_path / "tokenizer")),
        stages=(stage,),
        evaluation=Evaluation(domains=("math",), prompts_per_domain=4, max_new_tokens=16),
        rollout=RolloutConfig(max_model_len=64),
    )


def row(messages: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": messages},
        "agent_ref": {"name": "math"},
        "expected_answer": "7",
    }


def test_a_launch_says_which_prompts_will_be_left_out(cascade: Cascade) -> None:
    trained, heldout = overlong_prompts(cascade, KnownData())
    assert trained.startswith("rl: 3") and "prompts of math in" in trained
    assert "expected at most 56 tokens, found up to" in trained and "rows-0000" in trained
    assert heldout.startswith("evaluation: ") and "expected at most 63 tokens" in heldout
    counts = [int(line.split()[1]) for line in (trained, heldout)]
    assert sum(counts) == 40


def test_prompts_that_fit_are_not_mentioned(cascade: Cascade) -> None:
    assert (
        overlong_prompts(replace(cascade, rollout=RolloutConfig(max_model_len=4096), stages=wide(cascade)), KnownData())
        == []
    )


def wide(cascade: Cascade) -> tuple[Any, ...]:
    return (replace(cascade.stages[0], token_budget=4096),)


@pytest.mark.parametrize(
    "change", [{"overlong_prompts": "error"}, {"sampling": Sampling(16, max_total_tokens=18), "min_answer_tokens": 16}]
)
def test_an_error_by_key_and_where_nothing_is_left(cascade: Cascade, change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"rl: \d+ of \d+ prompts of math .* are too long: expected at most"):
        overlong_prompts(replace(cascade, stages=(replace(cascade.stages[0], **change),)), KnownData())


def test_each_source_is_measured_once(cascade: Cascade, monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownData()
    first = overlong_prompts(cascade, known)
    monkeypatch.setattr(prompt_lengths, "read_tasks", None)
    assert overlong_prompts(cascade, known) == first


def test_a_model_whose_tokenizer_the_run_trains_is_measured_later(cascade: Cascade) -> None:
    assert overlong_prompts(replace(cascade, base=BaseModel(hf_config={})), KnownData()) == []
