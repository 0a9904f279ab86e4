"""The rule that makes a cascade small keeps what a rehearsal must show."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from cascade_rl.launchers.local.inputs import check_settings, model_config
from cascade_rl.launchers.rehearse.small_cascade import RANKS, ROOM, answer, rule, small_cascade, total
from cascade_rl.launchers.rehearse.small_model import small_model
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.source import Source
from cascade_rl.rl_stages.config.stage import OnPolicyStage
from cascade_rl.rl_stages.config.text import override

LAUNCHERS = ("cascade2_30b_a3b", "cascade1_8b", "cascade1_8b_thinking", "cascade1_14b")
URL = "http://127.0.0.1:1/v1"
WORKPLACE = 5_116  # tokens of NeMo-Gym's longest example row


@pytest.fixture(
    params=[(name, kind) for name in LAUNCHERS for kind in ("h100", "b200")], ids=lambda pair: "-".join(pair)
)
def both(request: pytest.FixtureRequest) -> tuple[Cascade, Cascade]:
    launcher, kind = request.param
    true = override(importlib.import_module(f"cascade_rl.launchers.{launcher}").CASCADE, [f"hardware={kind}"])
    config = small_model(model_config(true), 1 << 16)
    sources = {Source.parse(text).path: "rows" for stage in true.stages for text in stage.data}
    return true, small_cascade(true, BaseModel(hf_config=config, tokenizer="tokenizer"), sources, URL)


def test_the_graph_and_the_gates_are_the_same(both: tuple[Cascade, Cascade]) -> None:
    graphs = [
        [(stage.name, stage.kind, cascade.parent(stage) and cascade.parent(stage).name, list(stage.gate))  # type: ignore[union-attr]
         for stage in cascade.stages]
        for cascade in both
    ]  # fmt: skip
    assert graphs[0] == graphs[1]
    for true, small in zip(*(cascade.stages for cascade in both), strict=True):
        assert true.router == small.router and true.models_read == small.models_read
        if isinstance(true, MopdStage):
            assert isinstance(small, MopdStage) and true.teachers == small.teachers


def test_what_shapes_a_reward_or_a_loss_is_the_same(both: tuple[Cascade, Cascade]) -> None:
    keys = ("objective", "overlong", "domains", "dynamic_filtering", "epoch_filter", "code_switch",
            "thinking_fraction", "sequence_error_bound", "tme_bound", "overlong_prompts")  # fmt: skip
    for true, small in zip(*(cascade.stages for cascade in both), strict=True):
        if isinstance(true, GrpoStage):
            assert isinstance(small, GrpoStage)
            assert [getattr(true, key) for key in keys] == [getattr(small, key) for key in keys]
            assert (true.reward_model and true.reward_model.kind) == (small.reward_model and small.reward_model.kind)
            heats = [(s.sampling.temperature, s.sampling.top_p, s.sampling.top_k) for s in (true, small)]
            assert heats[0] == heats[1]


def lengths(cascade: Cascade) -> Iterator[tuple[str, int, int, int]]:
    for stage in cascade.stages:
        if isinstance(stage, OnPolicyStage):
            room = cascade.room(stage)
            yield stage.name, stage.max_new_tokens, room.total, room.min_answer_tokens


def test_relations_of_lengths_are_kept(both: tuple[Cascade, Cascade]) -> None:
    true, small = (list(lengths(cascade)) for cascade in both)
    for (name, new, whole, least), found in zip(true, small, strict=True):
        assert found == (name, answer(new), total(whole), answer(least))
    for pair in ((1, 1), (2, 2), (1, 3)):
        for first in range(len(true)):
            for second in range(len(true)):
                if true[first][pair[0]] <= true[second][pair[1]]:
                    assert small[first][pair[0]] <= small[second][pair[1]]


def test_a_real_prompt_fits_every_stage_and_the_evaluation(both: tuple[Cascade, Cascade]) -> None:
    _, small = both
    rooms = [small.room(stage) for stage in small.stages if isinstance(stage, OnPolicyStage)]
    assert min(room.longest_prompt for room in [*rooms, small.evaluation_room]) >= ROOM > WORKPLACE


def kinds(cascade: Cascade) -> set[str]:
    layouts = [cascade.layout(stage).parallel for stage in cascade.stages]
    return {name for name in ("tensor", "context", "pipeline", "expert") for cut in layouts if getattr(cut, name) > 1}


def test_every_kind_of_parallelism_is_played_on_two_ranks(both: tuple[Cascade, Cascade]) -> None:
    true, small = both
    assert kinds(small) == kinds(true)
    assert {small.layout(stage).nproc for stage in small.stages} == {RANKS}
    check_settings(small)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_small_model_has_every_kind_of_layer_and_the_whole_vocabulary(launcher: str) -> None:
    published: Any = model_config(importlib.import_module(f"cascade_rl.launchers.{launcher}").CASCADE)
    small: Any = small_model(published, 4096)
    assert set(small.get("hybrid_override_pattern", "")) == set(published.get("hybrid_override_pattern", ""))
    assert small["vocab_size"] == published["vocab_size"]
    assert small.keys() >= published.keys()


def test_the_rule_is_one_sentence_of_numbers() -> None:
    told = rule(importlib.import_module("cascade_rl.launchers.cascade2_30b_a3b").CASCADE)
    assert "1/512" in told and "6,144 tokens for prompts" in told and "h100" in told
