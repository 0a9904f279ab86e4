"""A sampler of ten lines behind a real session: the real trainer learns from what it says."""

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling, Scored
from cascade_rl.engine.core.settings import LoraConfig, OptimizerConfig, RolloutConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.rollout.engine import Engine
from cascade_rl.rl_stages import grpo
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.rewards.verifiers.math import MathVerifier
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.sample_record import read_samples
from cascade_rl.rl_stages.session import Session
from tests.engine.models import tiny
from tests.gloo import run_ranks

RIGHT, WRONG = r"\boxed{7}", r"\boxed{8}"
STEPS = 3
STOP = 9  # a further token that ends an answer of the stage


class ScriptedEngine:
    """Of the samples of a prompt, every second one is right."""

    def __init__(self, tokenizer: Any) -> None:
        self.stops: set[tuple[int, ...]] = set()
        self.answers = [np.array([*tokenizer.encode(text), tokenizer.eos_token_id]) for text in (RIGHT, WRONG)]

    def generate(self, requests: Sequence[Request], *_: object) -> Iterator[Rollout]:
        for number, request in enumerate(requests):
            self.stops.add(request.sampling.stop_token_ids)
            ids, prompt = self.answers[number % 2], np.array(request.prompt_ids)
            spans = ((self.version, 0),)
            yield Rollout(request.id, prompt, ids, np.zeros(len(ids), np.float32), None, spans, "stop")

    def score(self, sequences: Sequence[Sequence[int]]) -> list[Scored]:
        return [Scored(np.zeros(len(ids) - 1, np.float32), None) for ids in sequences]

    def lacking(self, version: int) -> dict[int, int]:
        self.version = version
        return {}

    def restart(self) -> None: ...

    def awaits_weights(self) -> bool:
        return False

    def submit(self, requests: Sequence[Request]) -> None: ...

    joining = receiving = nullcontext


class ScriptedSession(Session[GrpoStage]):
    def start_engine(self, nodes: object) -> Any:
        engine: Engine = ScriptedEngine(self.tokenizer)
        return nullcontext(engine)


def cascade(root: Path) -> Cascade:
    rows = root / "sevens.jsonl"
    prompts = [f"What is {n} + {7 - n}?" for n in range(60)]
    rows.write_text("".join(json.dumps(row(prompt)) + "\n" for prompt in prompts))
    stage = GrpoStage(
        name="rl",
        domain="math",
        data=(str(rows),),
        steps=STEPS,
        prompts_per_step=4,
        rollouts_per_prompt=2,
        token_budget=512,
        sampling=Sampling(max_new_tokens=16, stop_token_ids=(STOP,)),
        optimizer=OptimizerConfig(lr=1e-2),
        importance="off",
        tme_bound=1e9,  # the engine makes its log-probs up
    )
    hf = tiny.llama(vocab_size=320).to_dict() | {"architectures": ["LlamaForCausalLM"]}
    return Cascade(
        name="scripted",
        base=BaseModel(hf_config=hf),
        stages=(stage,),
        evaluation=Evaluation(domains=("math",), prompts_per_domain=4, max_new_tokens=16),
        rollout=RolloutConfig(max_model_len=128, probe_bound=1e9, probe_mean_bound=1e9),
    )


def row(prompt: str) -> dict[str, Any]:
    question = {"role": "user", "content": prompt}
    return {
        "responses_create_params": {"input": [question]},
        "agent_ref": {"name": "math"},
        "expected_answer": "7",
    }


def train(run: RunFolder) -> tuple[float, float, dict[str, float]]:
    """log p(right) - log p(wrong) before and after, and the held-out score."""
    with ScriptedSession(run, run.stage("rl")) as session:
        before = preference(session)
        session.score("before")
        grpo.run(session)
        if session.zero:
            end = session.tokenizer.eos_token_id
            assert session.zero.engine.stops == {(end,), (end, STOP)}  # of held-out prompts, and of the stage's
        return before, preference(session), session.folder.scores()["before"]


def preference(session: Session[GrpoStage]) -> float:
    prompt = session.tokenizer.encode("What is 3 + 4?")
    answers = [session.tokenizer.encode(text) for text in (RIGHT, WRONG)]
    masks = [np.arange(1, len(prompt + answer)) >= len(prompt) for answer in answers]
    sequences = [TrainSequence(np.array(prompt + answer), mask) for answer, mask in zip(answers, masks, strict=True)]
    right, wrong = (
        values[mask].sum() for values, mask in zip(session.trainer.log_probs(sequences), masks, strict=True)
    )
    return float(right - wrong)


def train_adapters(run: RunFolder) -> tuple[float, float, dict[str, float]]:
    """Likewise, then ends the stage."""
    with ScriptedSession(run, run.stage("rl")) as session:
        before = preference(session)
        grpo.run(session)
        after, base = preference(session), session.trainer.lora
        assert base is not None and session.reference is base.base
        with base.base.in_place():
            again = preference(session)
        session.export()
    return before, after, {"base": again}


def test_a_session_trains_adapters_against_their_base(tmp_path: Path) -> None:
    """The base is the reference of the KL term, and stays as it was. The stage leaves it merged, and the adapters."""
    plain = cascade(tmp_path)
    stage = replace(plain.stages[0], lora=LoraConfig(rank=4), kl_coefficient=0.01, checkpoint_every=2)
    with RunFolder.claim(tmp_path / "run", replace(plain, stages=(stage,))) as (run, _):
        for before, after, scores in run_ranks(2, train_adapters, run):
            assert after > before + 1
            assert scores["base"] == before
        folder = run.stage("rl")
        base, merged = (load_file(path / "model.safetensors") for path in (run.root / "base", folder.export))
        factors = load_file(folder.adapter / "adapter_model.safetensors")
        kl = folder.metrics.rows()[-1]["reference_kl"]
    changed = {name for name in base if not torch.equal(base[name], merged[name])}
    adapted = {f"base_model.model.{name.removesuffix('.weight')}" for name in changed}
    assert adapted == {name.rpartition(".lora_")[0] for name in factors}
    assert kl > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_session_trains_on_the_samples_of_another_engine(ranks: int, tmp_path: Path) -> None:
    """On two ranks too, of which one never has the samples of the other."""
    with RunFolder.claim(tmp_path / "run", cascade(tmp_path)) as (run, _):
        found = run_ranks(ranks, train, run)
        rows = run.stage("rl").metrics.rows()
        recorded = read_samples(run.stage("rl").rollouts(STEPS))
    assert [row["reward"] for row in rows] == [0.5] * STEPS
    assert len(recorded) == 8
    for before, after, scores in found:
        assert scores == {"math": pytest.approx(0.5)}
        assert after > before + 1


class NotingVerifier(MathVerifier):
    """Says when it begins."""

    def __init__(self, begun: Event) -> None:
        super().__init__()
        self.begun = begun

    def __call__(self, task: Task, text: str) -> Verdict:
        self.begun.set()
        return super().__call__(task, text)


class LateEngine(ScriptedEngine):
    """The last sample of a batch ends when another one is already being scored."""

    begun: Event

    def generate(self, requests: Sequence[Request], *_: object) -> Iterator[Rollout]:
        for rollout in super().generate(requests):
            if rollout.id == requests[-1].id:
                assert self.begun.wait(60), "no sample was scored before the last one ended"
                self.begun.clear()
            yield rollout


class LateSession(ScriptedSession):
    def start_engine(self, nodes: object) -> Any:
        engine = LateEngine(self.tokenizer)
        engine.begun = self.begun = Event()
        return nullcontext(engine)


def overlap(run: RunFolder) -> float:
    """Seconds said to be overlapped by the evaluation, which is no part of a step."""
    with LateSession(run, run.stage("rl")) as session:
        assert session.zero and session.log
        session.zero.judge.makers = {"math": lambda: NotingVerifier(session.begun)}
        session.score("before")
        heldout = session.log.reward_overlapped_s
        grpo.run(session)
        return heldout


def test_the_first_samples_are_scored_before_the_last_one_ends(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "run", cascade(tmp_path)) as (run, _):
        assert run_ranks(1, overlap, run) == [0.0]
        steps = [event for event in run.stage("rl").events.rows() if event["event"] == "step"]
        assert [row["reward"] for row in run.stage("rl").metrics.rows()] == [0.5] * STEPS
    assert len(steps) == STEPS
    assert all(step["reward_overlapped_s"] > 0 for step in steps)
