"""Entries of `data`, and the shares in which their sources are drawn."""

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.source import Source, parse_sources
from cascade_rl.rl_stages.data.blend import Blend
from cascade_rl.rl_stages.tasks.load_tasks import load_tasks
from cascade_rl.rl_stages.tasks.prompt_blend import open_prompts

# STEM questions, tools and structured output in multi-domain RL: arXiv 2603.19220, section 4.
PAPER = ("0.55", "0.3", "0.15")


def math_rows(path: Path, count: int) -> str:
    prompts = [{"role": "user", "content": f"{path.stem} {number}"} for number in range(count)]
    path.write_text(
        "".join(
            json.dumps(
                {
                    "responses_create_params": {"input": [prompt]},
                    "agent_ref": {"name": "math"},
                    "expected_answer": "1",
                }
            )
            + "\n"
            for prompt in prompts
        )
    )
    return str(path)


def test_an_entry_is_a_path_with_a_count_and_a_weight() -> None:
    assert Source.parse("a.jsonl") == Source("a.jsonl")
    assert Source.parse("generate:math@0.6*0.3") == Source("generate:math@0.6", weight=Fraction(3, 10))
    assert Source.parse("a b/c.jsonl[:1853]*2") == Source("a b/c.jsonl", 1853, Fraction(2))


@pytest.mark.parametrize(
    "text",
    ["", "a*", "a*0", "a*-1", "a*nan", "a*x", "a[:]", "a[:0]", "a[:-1]", "a[:1.5]", "a[3]", "a*1/0", "a[:5", "*2"],
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected PATH, "):
        Source.parse(text)


def test_either_all_sources_have_weights_or_none() -> None:
    with pytest.raises(UserError, match="a weight for every source or for none; found 'b' without a weight"):
        parse_sources(["a*1", "b"])


def test_a_blend_has_its_shares_at_every_length_and_skips_no_draw() -> None:
    blend = Blend([Fraction(weight) for weight in PAPER])
    counts: Counter[int] = Counter()
    for position in range(400):
        source, place = blend.at(position)
        assert place == counts[source]
        counts[source] += 1
        assert all(abs(counts[i] - float(weight) * (position + 1)) < 1 for i, weight in enumerate(PAPER))
    assert counts == {0: 220, 1: 120, 2: 60}
    assert blend.at(10**12)[1] == pytest.approx(float(PAPER[blend.at(10**12)[0]]) * 10**12, abs=2)


def test_equal_weights_take_turns() -> None:
    blend = Blend([Fraction(1)] * 3)
    assert [blend.at(position) for position in range(6)] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]


def test_weighted_prompts_come_in_their_shares_and_resume_where_they_were(tmp_path: Path) -> None:
    data = [f"{math_rows(tmp_path / f'{name}.jsonl', 50)}*{weight}" for name, weight in zip("abc", PAPER, strict=True)]
    whole = [task.id for task in open_prompts(data, 1).take(200)]
    assert Counter(name[0] for name in whole) == {"a": 110, "b": 60, "c": 30}
    resumed = open_prompts(data, 1)
    resumed.take(120)
    assert [task.id for task in resumed.take(80)] == whole[120:]
    assert [task.id for task in open_prompts(data, 2).take(200)] != whole


def test_pass_rates_reach_the_stream_of_their_prompt(tmp_path: Path) -> None:
    prompts = open_prompts([f"{math_rows(tmp_path / f'{name}.jsonl', 50)}*1" for name in "ab"], 1)
    tasks = prompts.take(10)
    prompts.learn(prompts.taken, [0.0 if task.id[0] == "a" else 1.0 for task in tasks])
    assert [Counter(stream.pass_rates) for stream in prompts.streams] == [
        {rate: 5, None: len(stream.tasks) - 5} for rate, stream in zip((0.0, 1.0), prompts.streams, strict=True)
    ]


def test_a_count_takes_exactly_so_many_rows_of_the_train_split(tmp_path: Path) -> None:
    path = math_rows(tmp_path / "a.jsonl", 100)
    chosen = {task.id for task in load_tasks(f"{path}[:30]", split="train", seed=1)}
    assert len(chosen) == 30 < len(load_tasks(path, split="train", seed=1))
    assert {task.id for task in load_tasks(f"{path}[:30]", split="train", seed=2)} != chosen
    with pytest.raises(UserError, match=r"a\.jsonl: expected at least 100 rows; found 93"):
        load_tasks(f"{path}[:100]", split="train", seed=1)
