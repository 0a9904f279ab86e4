"""A really served tiny model answers as transformers does and leaves nothing behind; one that dies is asked again."""

import copy
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import torch
import transformers

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Request, Rollout, Scored
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout.client import EngineDied
from cascade_rl.rl_stages.data.tokenizer import encode_prompt, train_tokenizer
from cascade_rl.rl_stages.rewards.reward_models.judge_client import JudgeFailure
from cascade_rl.rl_stages.rewards.reward_models.served_model import WEIGHTS, ServedModel
from tests.engine.rollout.tiny_models import VOCAB, Reference, build, write_config, write_image

CONFIG = RolloutConfig(max_model_len=128, max_num_seqs=8, kv_cache_mib=16)
QUESTIONS = [[{"role": "user", "content": f"Is {number} more than 3?"}] for number in range(12)]
NEW, MORE = 12, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nemotron-H, the architecture of the tiny cascade."""
    folder = write_config("nemotron_h", tmp_path_factory.mktemp("judge"))
    train_tokenizer(QUESTIONS, vocab_size=VOCAB).save_pretrained(folder)
    write_image(build("nemotron_h", seed=1), folder / WEIGHTS)
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[ServedModel]:
    served = ServedModel(folder, CONFIG, folder / "engine.log", deadline_seconds=600, concurrency=8)
    yield served
    served.close()


def greedy_ids(folder: Path) -> list[tuple[list[int], list[int]]]:
    """Prompt and greedy answer to each question."""
    reference = Reference(build("nemotron_h", seed=1))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = []
    for question in QUESTIONS:
        ids = encode_prompt(tokenizer, question)
        prompt = len(ids)
        while len(ids) < prompt + NEW + MORE and ids[-1] != tokenizer.eos_token_id:
            ids.append(int(reference(np.array([*ids, 0]))[-1].argmax()))
        found.append((ids[:prompt], ids[prompt:]))
    return found


@pytest.fixture(scope="module")
def greedy(folder: Path) -> list[tuple[list[int], list[int]]]:
    return greedy_ids(folder)


def ask(served: ServedModel) -> list[str]:
    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(served.complete, question, max_tokens=NEW) for question in QUESTIONS]
        return [call.result().text for call in calls]


def test_answers_are_those_of_the_model_whatever_else_is_asked(
    served: ServedModel, greedy: list[tuple[list[int], list[int]]]
) -> None:
    eos = served._tokenizer.eos_token
    expected = [served._tokenizer.decode(answer[:NEW]).removesuffix(eos) for _, answer in greedy]
    assert len(set(expected)) > 3
    assert ask(served) == expected
    drawn = [served.complete(QUESTIONS[0], max_tokens=NEW, temperature=1.0).text for _ in range(2)]
    assert drawn[0] == drawn[1] != expected[0]


@pytest.mark.parametrize(("question", "behind", "count", "likely"), [(8, "T", 8, "s"), (7, "@ ", 11, "8")])
def test_a_choice_has_the_probability_that_the_model_gives_it(
    served: ServedModel,
    greedy: list[tuple[list[int], list[int]]],
    monkeypatch: pytest.MonkeyPatch,
    question: int,
    behind: str,
    count: int,
    likely: str,
) -> None:
    """Behind `count` tokens of the greedy answer, split between two and inside of one; the oracle computes in float64.
    The token that follows the choice stands for the stop token: a choice ends its answer."""
    model, (prompt, answer) = build("nemotron_h", seed=1).double(), greedy[question]
    model.set_experts_implementation("eager")  # the grouped product takes no float64
    rest = behind.removeprefix("T").removeprefix("@")
    tails = [served._tokenizer.encode(rest + word, add_special_tokens=False) for word in (likely, "YES", "NO")]
    assert tails[0] == [answer[count]]

    def probability(tail: list[int]) -> float:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *answer[:count], *tail]]), use_cache=False).logits[0]
        return float(logits[-len(tail) - 1 : -1].log_softmax(-1)[range(len(tail)), tail].sum().exp())

    with pytest.raises(JudgeFailure, match="found one that was cut"):
        served.choose(QUESTIONS[question], (likely, "YES", "NO"), behind=behind, max_tokens=count + 1)
    assert answer[count + 1] not in answer[: count + 1]
    ending = copy.deepcopy(served._tokenizer)
    ending.eos_token = ending.convert_ids_to_tokens(answer[count + 1])
    monkeypatch.setattr(served, "_tokenizer", ending)
    told = served.choose(QUESTIONS[question], (likely, "YES", "NO"), behind=behind, max_tokens=NEW + MORE)
    assert told == pytest.approx([probability(tail) for tail in tails], rel=2e-3)
    assert told[0] > 10 * told[2] > 0


def test_what_cannot_be_asked_is_a_failure(served: ServedModel) -> None:
    with pytest.raises(JudgeFailure, match="at most 0 tokens, which leaves 128 of 128"):
        served.complete(QUESTIONS[0], max_tokens=128)


def test_closing_leaves_no_process(folder: Path, served: ServedModel) -> None:
    (pid,) = served._engine.pids
    with ThreadPoolExecutor(1) as threads:
        os.kill(pid, signal.SIGSTOP)
        call = threads.submit(served.complete, QUESTIONS[0], max_tokens=NEW)
        time.sleep(0.2)
        served.close()
        assert isinstance(call.exception(), JudgeFailure)
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)
    with pytest.raises(JudgeFailure, match="closed"):
        served.complete(QUESTIONS[0], max_tokens=1)


class Mortal:
    """An engine that dies of its first batch."""

    def __init__(self, *_: object, **__: object) -> None:
        self.version: int | None = None
        self.pids: list[int] = []
        self.pending: list[Request] = []
        self.deaths = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update_weights(self, _: Path, version: int) -> None:
        self.version = version

    def restart(self) -> None:
        self.deaths += 1

    def submit(self, requests: Iterable[Request]) -> None:
        self.pending += requests

    def score(self, sequences: Sequence[Sequence[int]]) -> list[Scored]:
        if self.deaths < 2:
            self.version = None
            raise EngineDied(-9, (), Path("log"), "")
        return [Scored(np.log(np.full(len(ids) - 1, 0.5, np.float32)), None) for ids in sequences]

    def results(self) -> Iterator[Rollout]:
        if self.pending and not self.deaths:
            self.version = None
            raise EngineDied(-9, (), Path("log"), "")
        while self.pending:
            one = self.pending.pop()
            yield Rollout(one.id, np.array([1]), np.array([7, 2]), np.zeros(2, np.float32), None, ((0, 0),), "stop")


def test_an_engine_that_dies_is_started_and_asked_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cascade_rl.engine.rollout.client.RolloutEngine", Mortal)
    served = ServedModel(folder, CONFIG, folder / "log", deadline_seconds=60, concurrency=8)
    assert len(ask(served)) == len(QUESTIONS)
    assert served._engine.deaths == 1  # type: ignore[attr-defined]
    letter = served._tokenizer.decode(7)
    assert served.choose(QUESTIONS[0], ("Y", "NO"), behind=letter, max_tokens=1) == pytest.approx((0.5, 0.25))
    assert served._engine.deaths == 2  # type: ignore[attr-defined]
    with pytest.raises(JudgeFailure, match="expected a reply that ends with <judgement> and one word"):
        served.choose(QUESTIONS[0], ("YES", "NO"), behind="<judgement>", max_tokens=1)
    served.close()


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.safetensors"):
        ServedModel(tmp_path, CONFIG, tmp_path / "log", deadline_seconds=1, concurrency=1)
