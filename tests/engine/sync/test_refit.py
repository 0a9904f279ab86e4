"""A refit brings the trainer's weights to vLLM, and an engine that has others is not sampled from."""

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.backend.ranks import from_rank0
from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling, Scored
from cascade_rl.engine.core.settings import LoraConfig, OptimizerConfig, ParallelConfig, RolloutConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.rollout.client import RolloutEngine
from cascade_rl.engine.sync.sampler import Batch, sample
from cascade_rl.engine.sync.weight_sync import Refit, StaleWeights
from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.launchers.card import first_step
from tests.engine.rollout import tiny_models
from tests.gloo import run_ranks

BOUND = 2e-3
PROBE = [list(range(5, 30)), list(range(90, 101)), list(range(40, 60, 3))]
MOVED = "decoder.layers.3.self_attention.linear_proj.weight"
TEMPERATURE = 0.7
LAYOUT = ParallelConfig(tensor=2, expert=2, sequence=True)
CONFIG = RolloutConfig(max_model_len=64, max_num_seqs=8, probe_bound=BOUND, checksum="digests", checksum_every=2)

BUFFERED = replace(CONFIG, placement="disaggregated", max_staleness=2, weight_buffer=True)


@dataclass
class Found:
    """On one rank."""

    gaps: list[float]
    errors: list[str]
    sampled_gaps: list[float]
    tme: list[float]
    replayed: float
    deaths: int
    same_samples: bool
    versions: list[int | None]
    first_steps: list[str]


def new_trainer(folder: Path, parallel: ParallelConfig) -> Trainer:
    initialize_distributed(parallel, seed=1)
    hf_config = json.loads((folder / "config.json").read_text())
    return Trainer(hf_config, parallel, OptimizerConfig(lr=1e-2), total_steps=9, token_budget=256, seed=1)


def requests() -> list[Request]:
    sampling = Sampling(max_new_tokens=24, temperature=TEMPERATURE)
    return [Request(str(seed), tuple(ids[:8]), sampling, seed) for seed, ids in enumerate(PROBE)]


def draw(engine: RolloutEngine | None, refit: Refit, deaths: list[str]) -> list[Rollout]:
    batch = Batch(engine, requests()) if engine else None
    rollouts = sample(batch, refit)
    deaths += map(str, batch.deaths) if batch else []
    return rollouts


def training_sequence(rollout: Rollout) -> TrainSequence:
    ids = np.concatenate([rollout.prompt_ids, rollout.token_ids])
    return TrainSequence(ids, np.arange(1, len(ids)) >= len(rollout.prompt_ids), TEMPERATURE, routes=rollout.routes)


def sampled_gap(trainer: Trainer, rollouts: Sequence[Rollout]) -> np.ndarray:
    """|log p_train - log p_rollout| of each drawn token, which rank 0 has."""
    logprobs = trainer.log_probs([training_sequence(rollout) for rollout in rollouts])

    def gaps() -> np.ndarray:
        ours = [found[len(r.prompt_ids) - 1 :] for found, r in zip(logprobs, rollouts, strict=True)]
        return np.abs(np.concatenate(ours) - np.concatenate([r.logprobs for r in rollouts]))

    return from_rank0(gaps)


def stale_error(refit: Refit, version: int) -> str:
    with pytest.raises(StaleWeights) as error:
        refit(version)
    return str(error.value)


def kill(engine: RolloutEngine | None) -> None:
    if engine:
        os.kill(engine.pids[0], signal.SIGKILL)
    dist.barrier()


def with_vllm(folder: Path) -> Found:
    trainer = new_trainer(folder, LAYOUT)
    engine = RolloutEngine(folder, CONFIG, 1, folder / "log") if dist.get_rank() == 0 else None
    refit = Refit(trainer, engine, PROBE, CONFIG)
    send, versions, deaths = refit.send, list[int | None](), list[str]()
    gaps = [refit(0)]
    before = draw(engine, refit, deaths)
    drawn = [sampled_gap(trainer, before)]
    if engine:
        engine._config = BUFFERED
    replayed = trainer.update([training_sequence(r) for r in before], SftLoss(), 0)["replay_fraction"]

    refit.send = lambda: None  # type: ignore[method-assign]
    errors = [stale_error(refit, 1)]
    refit.send = send  # type: ignore[method-assign]
    gaps.append(refit(1))
    assert [(stall.running, stall.seconds > 0) for stall in refit.stalls] == ([(0, True)] if engine else [])
    after = draw(engine, refit, deaths)
    drawn.append(sampled_gap(trainer, after))
    kill(engine)
    again = draw(engine, refit, deaths)
    same = all(
        np.array_equal(one.token_ids, other.token_ids) and np.array_equal(one.logprobs, other.logprobs)
        for one, other in zip(after, again, strict=True)
    )
    gaps.append(refit(2))
    versions.append(from_rank0(lambda: engine and engine.version))

    def send_then_move() -> None:
        send()
        with torch.no_grad():
            dict(trainer.module.named_parameters())[MOVED][3, 5] += 1.0

    refit.send = send_then_move  # type: ignore[method-assign]
    errors.append(stale_error(refit, 3))
    refit.send = partial(nan_scores, engine, send)  # type: ignore[method-assign]
    errors.append(stale_error(refit, 4))

    refit.send = send  # type: ignore[method-assign]
    if engine:
        del engine.score
    first_steps = [first_step.refitted(refit), first_step.generated(refit), first_step.step(trainer)]
    gaps.append(adapters_gap(folder, refit))
    if engine:
        engine.close()
    dist.barrier()
    tme = [np.exp(g).mean() for g in drawn]
    return Found(gaps, errors, [g.max() for g in drawn], tme, replayed, len(deaths), same, versions, first_steps)


def adapters_gap(folder: Path, refit: Refit) -> float:
    """The same engine, refitted by a trainer of adapters after an update: it gets the base, then factors alone."""
    hf_config, rate = json.loads((folder / "config.json").read_text()), OptimizerConfig(lr=1e-2)
    adapted = Trainer(hf_config, LAYOUT, rate, total_steps=9, token_budget=256, seed=2, lora=LoraConfig(rank=2))
    sequences = [TrainSequence(np.array(ids), np.ones(len(ids) - 1, bool)) for ids in PROBE]
    before = np.concatenate(adapted.log_probs(sequences))
    weights = refit.bytes
    refit.trainer, refit._joined, refit.config = adapted, {}, replace(CONFIG, refit="adapters")
    first = refit(refit.version + 1)
    adapted.update(sequences, SftLoss(), 0)
    assert np.abs(np.concatenate(adapted.log_probs(sequences)) - before).max() > 10 * BOUND
    assert 0 < 4 * refit.bytes < weights
    return max(first, refit(refit.version + 1))


def nan_scores(engine: RolloutEngine | None, send: Callable[[], None]) -> None:
    send()
    if engine:
        score = engine.score

        def broken(ids: Sequence[Sequence[int]]) -> list[Scored]:
            scores = score(ids)
            scores[1].logprobs[2] = np.nan
            return scores

        engine.score = broken  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """Mamba, attention and experts on two ranks: refit, sample, replay, train, refit, sample, die, refit.

    From the second refit on the weights are buffered."""
    folder = tmp_path_factory.mktemp("nemotron_h")
    return run_ranks(2, with_vllm, tiny_models.write_config("nemotron_h", folder))


def test_a_trained_model_is_the_one_that_vllm_samples(found: list[Found]) -> None:
    for rank in found:
        assert min(rank.gaps) > 0  # zero is what comparing a side with itself would give
        assert max(rank.gaps + rank.sampled_gaps) < BOUND
        assert max(rank.tme) < 1.001
        assert rank.replayed == 1.0


def test_an_engine_with_other_weights_stops_every_rank(found: list[Found]) -> None:
    """It kept the old ones, it lost a value, it gives NaN."""
    for rank in found:
        for version, error in zip((1, 3, 4), rank.errors, strict=True):
            assert f"after the refit to weight version {version} trainer and engine differ by" in error
            assert "expected at most 2e-03 (rollout.probe_bound)" in error


def test_a_restarted_engine_gets_the_same_weights_and_draws_the_same_samples(found: list[Found]) -> None:
    assert [rank.deaths for rank in found] == [1, 0]
    assert all(rank.same_samples for rank in found)
    assert [rank.versions for rank in found] == [[2], [2]]


def test_the_first_steps_of_cascade_doctor_pass(found: list[Found]) -> None:
    for rank in found:
        refit, generation, step = rank.first_steps
        assert "expected at most 2e-03" in refit
        assert f"{first_step.SEQUENCES * first_step.NEW_TOKENS} tokens" in generation
        assert "gradient norm" in step
