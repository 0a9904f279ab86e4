"""The environment loop: what is appended, token by token, what is masked, and how episodes end."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome, Rollout, Sampling
from cascade_rl.rl_stages.core.episode_rollout import EpisodeRollout
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.data.chat_templates import NAMED
from cascade_rl.rl_stages.data.tokenizer import encode_prompt
from cascade_rl.rl_stages.scoring.judge import Judge
from cascade_rl.rl_stages.scoring.scored_sample import Sample, outcomes, record
from tests.rl_stages.environments.scripted import (
    QUESTION,
    TASK,
    TOKENIZER,
    Play,
    Say,
    ScriptedEnvironment,
    ScriptedServer,
    said,
)
from tests.until import LIMIT_S

SAMPLING = Sampling(120, stop_token_ids=(TOKENIZER.eos_token_id,))
Start = Callable[..., Play]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Start:
    def started(answer: Callable[[str], str | float], say: Say) -> Play:
        return Play(monkeypatch, tmp_path, ScriptedEnvironment(answer), say)

    return started


def three_turns(_: str, turn: int) -> str:
    return ("look at cups", "look at books", "end")[turn]


def shelf(text: str) -> str | float:
    return {"look at cups": "two cups", "look at books": "three books", "end": 0.5}[text]


def conversation() -> list[dict[str, str]]:
    said = [
        ("assistant", "look at cups"),
        ("tool", "two cups"),
        ("assistant", "look at books"),
        ("tool", "three books"),
    ]
    return [QUESTION, *({"role": role, "content": content} for role, content in said)]


def whole_ids() -> list[int]:
    """The three-turn episode as the chat template renders it at once."""
    return [*encode_prompt(TOKENIZER, conversation()), *TOKENIZER.encode("end"), TOKENIZER.eos_token_id]


def test_an_episode_is_the_conversation_as_the_template_renders_it(start: Start) -> None:
    rollout = start(shelf, three_turns)("a", SAMPLING)["a"]
    assert rollout.prompt_ids.tolist() == encode_prompt(TOKENIZER, [QUESTION])
    assert [*rollout.prompt_ids, *rollout.token_ids] == whole_ids()
    assert (rollout.turns, rollout.finish) == (3, "stop")
    said = [*TOKENIZER.encode("look at cups"), *TOKENIZER.encode("look at books"), *TOKENIZER.encode("end")]
    assert [i for i in rollout.token_ids[rollout.generated] if i != TOKENIZER.eos_token_id] == said
    assert rollout.length == len(said) + 3


@pytest.mark.parametrize("name", NAMED)
def test_an_episode_of_calls_is_what_a_published_template_renders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """The outputs of a turn's calls share a turn, and reasoning stays, since no user turn follows."""
    monkeypatch.setattr(TOKENIZER, "chat_template", NAMED[name])
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "cups", "all": True}}}
    asked = {"role": "assistant", "content": "", "reasoning_content": "I look.", "tool_calls": [call, call]}
    shown = [("two cups", "books"), ("none",)]
    outputs = [[{"role": "tool", "content": content} for content in contents] for contents in shown]
    answer = {"role": "assistant", "content": "None.", "reasoning_content": "So."}
    whole = [QUESTION, asked, *outputs[0], asked, *outputs[1], answer]

    def rendered(end: int, **settings: bool) -> str:
        return str(TOKENIZER.apply_chat_template(whole[:end], tokenize=False, **settings)).removesuffix("\n")

    said = [
        rendered(end + 1)
        .removeprefix(rendered(end, add_generation_prompt=True))
        .lstrip("\n")
        .removesuffix("<|im_end|>")
        for end in (1, 4, 6)
    ]
    world = iter([*shown, 1.0])
    environment = ScriptedEnvironment(lambda _: next(world))
    play = Play(monkeypatch, tmp_path, environment, lambda _, turn: said[turn - 1], limit=2000)  # after a system turn
    rollout = play("a", replace(SAMPLING, max_new_tokens=1000))["a"]
    assert [*rollout.prompt_ids, *rollout.token_ids] == TOKENIZER.encode(rendered(7))


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_turn_that_never_leaves_its_reasoning_ends_the_episode(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, turns: int
) -> None:
    """Its template opens the reasoning of every turn; the environment sees only turns that leave it."""
    monkeypatch.setattr(TOKENIZER, "chat_template", NAMED["nemotron3"])
    seen: list[str] = []

    def shown(text: str) -> str:
        seen.append(text)
        return "two cups"

    play = Play(
        monkeypatch,
        tmp_path,
        ScriptedEnvironment(shown),
        lambda _, turn: "look</think>cups" if turn - 1 < turns else "end",
        limit=2000,
    )
    rollout = play("a", replace(SAMPLING, max_new_tokens=1000))["a"]
    assert seen == ["look</think>cups"] * turns
    verdict = rollout.verdict  # type: ignore[union-attr]
    assert (verdict.outcome, verdict.score, rollout.turns) == (Outcome.WRONG_FORMAT, 0.0, turns + 1)


def test_raw_ids_stay_as_sampled_where_encoding_would_give_others(start: Start) -> None:
    play = start(lambda text: 1.0 if text == "end" else text, lambda _, turn: ("spell:books", "end")[turn])
    rollout = play("a", SAMPLING)["a"]
    assert said("spell:books") != TOKENIZER.encode("books")
    assert rollout.token_ids[: len("books")].tolist() == said("spell:books")
    first, second = (request.prompt_ids for request in ScriptedServer.requests)
    assert list(second[: len(first) + len("books")]) == [*first, *said("spell:books")]


def test_what_was_shown_has_no_loss_no_log_prob_and_no_advantage(start: Start) -> None:
    rollout = start(shelf, three_turns)("a", SAMPLING)["a"]
    sample = Sample(TASK, rollout, "", Verdict.scored(1.0), 0.25)
    sequence = sample.sequence(1.0)
    ids, begin = whole_ids(), len(rollout.prompt_ids)
    shown = np.zeros(len(ids), bool)
    for message in ("two cups", "three books"):
        delta = [*TOKENIZER.encode("\n"), *encode_prompt(TOKENIZER, [{"role": "tool", "content": message}])]
        at = next(i for i in range(begin, len(ids)) if ids[i : i + len(delta)] == delta)
        shown[at : at + len(delta)] = True
    generated = ~shown[1:] & (np.arange(1, len(ids)) >= begin)
    assert sequence.loss_mask.tolist() == generated.tolist()
    places = np.where(generated, -np.arange(1, len(ids)), 0)  # what the scripted server gives
    assert sequence.per_token["rollout_logprob"].tolist() == places.tolist()
    assert sequence.per_token["advantage"].tolist() == np.where(generated, 0.25, 0).tolist()
    assert outcomes([sample])["length"] == generated.sum()
    kept = record(sample, sequence, np.zeros(len(ids) - 1, np.float32))
    assert kept.generated.tolist() == kept.loss_mask.tolist() == generated[begin - 1 :].tolist()
    assert kept.turns == 3


def test_a_position_keeps_the_routes_of_the_turn_that_first_computed_it(start: Start) -> None:
    rollout = start(shelf, three_turns)("a", SAMPLING)["a"]
    starts = [len(request.prompt_ids) for request in ScriptedServer.requests]
    ends = [
        len(request.prompt_ids) + len(TOKENIZER.encode(three_turns("a", turn)))
        for turn, request in enumerate(ScriptedServer.requests)
    ]  # the stop token is computed only by the next turn
    expected = [starts[0]] * ends[0] + [starts[1]] * (ends[1] - ends[0]) + [starts[2]] * (ends[2] - ends[1])
    assert rollout.routes.ravel().tolist() == expected
    assert len(expected) == len(rollout.prompt_ids) + len(rollout.token_ids) - 1


def test_each_turn_of_each_sample_has_its_own_seed_which_does_not_change(start: Start) -> None:
    play, seeds = start(shelf, three_turns), []
    for _ in range(2):
        ScriptedServer.requests.clear()
        play("ab", SAMPLING)
        seeds.append({(request.id, len(request.prompt_ids)): request.seed for request in ScriptedServer.requests})
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0].values())) == 6


def test_a_sample_that_ends_early_is_truncated_and_says_why(start: Start) -> None:
    def rambling(name: str, turn: int) -> str:
        return {"t": "look at cups", "l": "look " * 300, "n": "look at cups", "c": "look at cups"}[name]

    shown = {"c": "two cups " * 60}
    play = start(lambda _: shown.get(name, "two cups"), rambling)
    for name, sampling, detail, turns in (
        ("t", replace(SAMPLING, max_turns=2), "max_turns = 2", 2),
        ("l", SAMPLING, "max_new_tokens", 1),
        ("n", replace(SAMPLING, max_new_tokens=len(TOKENIZER.encode("look at cups")) + 1), "no room", 1),
        ("c", SAMPLING, "no room", 3),
    ):
        rollout = play(name, sampling)[name]
        assert isinstance(rollout, EpisodeRollout)
        assert (rollout.verdict.outcome, rollout.verdict.score) == (Outcome.TRUNCATED, 0.0)
        assert detail in rollout.verdict.detail
        assert (rollout.turns, rollout.finish) == (turns, "length")
        assert rollout.generated is None or rollout.generated[-1]  # it ends with what the model said


def test_a_failing_environment_costs_its_own_sample_only(start: Start) -> None:
    def fragile(text: str) -> str | float:
        if text == "crash":
            raise ConnectionError("tool server is gone")
        return shelf(text)

    def say(name: str, turn: int) -> str:
        return "crash" if name == "b" and turn == 1 else three_turns(name, turn)

    play = start(fragile, say)
    rollouts = play("abc", SAMPLING)
    verdicts = {name: rollout.verdict for name, rollout in rollouts.items()}
    assert verdicts["b"].outcome is Outcome.INFRASTRUCTURE_FAILURE
    assert verdicts["b"].score is None
    assert "turn 2: ConnectionError('tool server is gone')" in verdicts["b"].detail
    assert rollouts["b"].finish == "abort"
    assert verdicts["a"].score == verdicts["c"].score == 0.5


def test_what_is_wrong_with_all_samples_ends_the_run(start: Start) -> None:
    def misconfigured(_: str) -> str:
        raise UserError("no such office")

    with pytest.raises(UserError, match="no such office"):
        start(misconfigured, three_turns)("a", SAMPLING)


def test_a_step_that_hangs_is_given_up_and_its_thread_replaced(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedEnvironment, "step_seconds", 2.0)
    monkeypatch.setattr(ScriptedEnvironment, "concurrency", 1)
    released = threading.Event()

    def hanging(text: str) -> str | float:
        if text == "hang":
            released.wait(600.0)
        return shelf(text)

    play = start(hanging, lambda name, turn: "hang" if name in "ab" else three_turns(name, turn))
    rollouts: dict[str, Rollout] = {}
    draw = threading.Thread(target=lambda: rollouts.update(play("abc", SAMPLING)), daemon=True)
    draw.start()
    draw.join(LIMIT_S)
    released.set()
    assert {name: rollout.verdict.score for name, rollout in rollouts.items()} == {"a": None, "b": None, "c": 0.5}
    for name in "ab":
        assert rollouts[name].verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE
        assert "turn 1: TimeoutError('not done after 2 s')" in rollouts[name].verdict.detail


def test_a_slow_step_does_not_keep_the_others_from_their_next_turns(start: Start) -> None:
    others_done = threading.Event()

    def patient(text: str) -> str | float:
        if text == "wait":
            assert others_done.wait(LIMIT_S)  # there is no barrier per turn: sample b gets through meanwhile
        if text == "end":
            others_done.set()
        return shelf(text) if text != "wait" else 1.0

    rollouts = start(patient, lambda name, turn: "wait" if name == "a" else three_turns(name, turn))("ab", SAMPLING)
    assert (rollouts["a"].verdict.score, rollouts["b"].verdict.score) == (1.0, 0.5)


def test_a_restarted_engine_draws_the_pending_turn_again_and_no_other(start: Start) -> None:
    def say(name: str, turn: int) -> str:
        return "DIE" if (name, turn, ScriptedServer.starts) == ("b", 1, 1) else three_turns(name, turn)

    rollouts = start(shelf, say)("ab", SAMPLING)
    assert ScriptedServer.starts == 2
    assert all(rollout.verdict.score == 0.5 for rollout in rollouts.values())
    turns = [(request.id, len(request.prompt_ids), request.seed) for request in ScriptedServer.requests]
    assert len(set(turns)) == 6
    again = {turn[:2] for turn in turns if turns.count(turn) > 1}
    second = sorted({length for _, length, _ in turns})[1]
    assert again == {("b", second)}


def test_every_episode_is_closed_before_its_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = ScriptedEnvironment(shelf)
    play = Play(
        monkeypatch, tmp_path, environment, lambda name, turn: "bad" if name == "b" else three_turns(name, turn)
    )
    assert play("abc", SAMPLING)["b"].verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE  # KeyError
    time.sleep(0.01)
    assert environment.open == -1000


def test_the_judge_takes_the_verdict_of_the_environment(start: Start) -> None:
    rollout = start(shelf, three_turns)("a", SAMPLING)["a"]
    with Judge(TOKENIZER) as judge:
        (((text, verdict),),) = judge([TASK], [[rollout]])
        assert verdict.score == 0.5
        assert "look at cups" in text
        assert judge.verifiers == {}
        plain = Rollout("a", rollout.prompt_ids, rollout.token_ids, rollout.logprobs, None, ((0, 0),), "stop")
        with pytest.raises(TypeError, match="expected episodes of 'scripted'"):
            judge([TASK], [[plain]])
