"""A refit brings the trainer's weights to the engine, and an engine that has others is not sampled from.

Most tests put transformers where vLLM is: what is tested is the image and the probe. The last one is vLLM.
"""

import json
import shutil
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cascade_rl.engine.backend import initialize_distributed
from cascade_rl.engine.config import OptimizerConfig, ParallelConfig, RolloutConfig
from cascade_rl.engine.losses import SftLoss
from cascade_rl.engine.models import HfImage
from cascade_rl.engine.refit import Refit, StaleWeights
from cascade_rl.engine.rollout.client import RolloutEngine
from cascade_rl.engine.sample import Request, Rollout, Sampling, Scored, Sequence
from cascade_rl.engine.trainer import Trainer
from tests.engine.models import tiny
from tests.engine.rollout import tiny_models
from tests.gloo import run_ranks

BOUND, VLLM_BOUND = 1e-4, 2e-3
PROBE = [list(range(5, 30)), list(range(90, 101)), list(range(40, 60, 3))]
CORRUPTED = "backbone.layers.3.mixer.o_proj.weight"
TEMPERATURE = 0.7
ONE = ParallelConfig()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nemotron_h")
    tiny.save(tiny.nemotron_h(), folder)
    return folder


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Where a run that was killed has left something larger."""
    image = tmp_path / "image.safetensors"
    image.write_bytes(b"\x7f" * 2_000_000)
    return image


class TransformersEngine:
    """The two methods of a RolloutEngine that a refit calls, with a fault from the second weights on."""

    def __init__(self, config: Path, folder: Path, fault: str) -> None:
        self.folder, self.fault, self.versions = folder, fault, list[int]()
        shutil.copy(config, folder)

    def update_weights(self, image: Path, version: int) -> None:
        faulty = self.fault if self.versions else "none"
        self.versions.append(version)
        if faulty == "keeps the old weights":
            return
        weights = shutil.copy(image, self.folder / "model.safetensors")
        if faulty == "loses a value":
            HfImage.open(weights).view(CORRUPTED)[3, 5] += 1.0

    def score(self, sequences: ListOf[ListOf[int]]) -> list[Scored]:
        model = AutoModelForCausalLM.from_pretrained(self.folder)
        scores = [Scored(log_probs(model, ids), None) for ids in sequences]
        if self.fault == "gives NaN" and len(self.versions) > 1:
            scores[1].logprobs[2] = np.nan
        return scores


def log_probs(model: torch.nn.Module, ids: ListOf[int]) -> np.ndarray:
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    return logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]].numpy()


def new_trainer(folder: Path, parallel: ParallelConfig) -> Trainer:
    initialize_distributed(parallel, seed=1)
    return Trainer(
        json.loads((folder / "config.json").read_text()),
        parallel,
        OptimizerConfig(lr=1e-2),
        total_steps=9,
        token_budget=256,
        seed=1,
    )


def move(trainer: Trainer) -> None:
    sequences = [Sequence(token_ids=np.array(ids), loss_mask=np.ones(len(ids) - 1, bool)) for ids in PROBE]
    trainer.update(sequences, SftLoss(), 0)


def probed(
    folder: Path, image: Path, parallel: ParallelConfig, fault: str
) -> tuple[float, float | str, list[int], bool]:
    """On this rank: the gap after the first refit, the gap or the error after the second one."""
    trainer = new_trainer(folder, parallel)
    trainer.load_hf(folder)
    first = torch.distributed.get_rank() == 0
    with TemporaryDirectory() as engine_folder:
        engine = TransformersEngine(folder / "config.json", Path(engine_folder), fault)
        refit = Refit(trainer, engine if first else None, image, PROBE, BOUND)  # type: ignore[arg-type]
        gap = refit(4)
        move(trainer)
        try:
            outcome: float | str = refit(5)
        except StaleWeights as error:
            outcome = str(error)
        torch.distributed.barrier()
        refit.close()
        return gap, outcome, engine.versions, image.exists()


@pytest.mark.parametrize(
    ("ranks", "parallel"),
    [(1, ONE), (2, ParallelConfig(tensor=2, expert=2, sequence=True)), (2, ParallelConfig(pipeline=2))],
    ids=["one rank", "TP2 EP2", "PP2"],
)
def test_every_refit_is_probed_on_every_rank(ranks: int, parallel: ParallelConfig, folder: Path, image: Path) -> None:
    found = run_ranks(ranks, probed, folder, image, parallel, "none")
    assert len({(first, second) for first, second, _, _ in found}) == 1
    for gap in found[0][:2]:
        assert 0 < gap < 1e-5  # zero is what comparing a side with itself would give
    assert [versions for _, _, versions, _ in found] == [[4, 5]] + [[]] * (ranks - 1)
    assert not any(left for _, _, _, left in found)


@pytest.mark.parametrize("fault", ["keeps the old weights", "loses a value", "gives NaN"])
def test_an_engine_with_other_weights_stops_every_rank(fault: str, folder: Path, image: Path) -> None:
    ranks = 2 if fault == "keeps the old weights" else 1
    for first, second, _, left in run_ranks(ranks, probed, folder, image, ParallelConfig(expert=ranks), fault):
        assert first < 1e-5
        assert "after the refit to weight version 5 trainer and engine differ by" in str(second)
        assert "expected at most 1e-04 (rollout.probe_bound)" in str(second)
        assert not left


@dataclass
class WithVllm:
    gaps: list[float]
    errors: list[str]
    sampled_gaps: list[float]
    tme: list[float]
    replayed: float


def sampled(trainer: Trainer, engine: RolloutEngine) -> tuple[list[Sequence], np.ndarray]:
    """What the engine draws, as training sequences, and |log p_train - log p_rollout| of each drawn token."""
    sampling = Sampling(max_new_tokens=24, temperature=TEMPERATURE)
    engine.submit([Request(str(seed), tuple(ids[:8]), sampling, seed) for seed, ids in enumerate(PROBE)])
    rollouts = sorted(engine.results(), key=lambda rollout: rollout.id)
    sequences = [training_sequence(rollout) for rollout in rollouts]
    ours = [found[len(r.prompt_ids) - 1 :] for found, r in zip(trainer.log_probs(sequences), rollouts, strict=True)]
    return sequences, np.abs(np.concatenate(ours) - np.concatenate([r.logprobs for r in rollouts]))


def training_sequence(rollout: Rollout) -> Sequence:
    ids = np.concatenate([rollout.prompt_ids, rollout.token_ids])
    return Sequence(ids, np.arange(1, len(ids)) >= len(rollout.prompt_ids), TEMPERATURE, routes=rollout.routes)


def stale_error(refit: Refit, version: int) -> str:
    with pytest.raises(StaleWeights) as error:
        refit(version)
    return str(error.value)


def with_vllm(folder: Path) -> WithVllm:
    trainer = new_trainer(folder, ONE)
    settings = RolloutConfig(max_model_len=64, max_num_seqs=8)
    with RolloutEngine(folder, settings, 1, folder / "log") as engine:
        refit = Refit(trainer, engine, folder / "image", PROBE, VLLM_BOUND)
        send = refit.send
        gaps = [refit(0)]
        sequences, before = sampled(trainer, engine)
        replayed = trainer.update(sequences, SftLoss(), 0)["replay_fraction"]
        refit.send = lambda: None  # type: ignore[method-assign]
        errors = [stale_error(refit, 1)]
        refit.send = send  # type: ignore[method-assign]
        gaps.append(refit(1))
        _, after = sampled(trainer, engine)

        def send_corrupted() -> None:
            HfImage.open(refit.image).view(CORRUPTED)[3, 5] += 1.0
            send()

        refit.send = send_corrupted  # type: ignore[method-assign]
        errors.append(stale_error(refit, 2))
        refit.close()
    sides = (before, after)
    return WithVllm(gaps, errors, [g.max() for g in sides], [np.exp(g).mean() for g in sides], replayed)


def test_a_trained_model_is_the_one_that_vllm_samples(tmp_path: Path) -> None:
    """Mamba, attention and experts: refit, sample, replay, train, refit, sample."""
    config = tiny_models.write_config("nemotron_h", tmp_path)
    [found] = run_ranks(1, with_vllm, config)
    assert max(found.gaps + found.sampled_gaps) < VLLM_BOUND
    assert max(found.tme) < 1.001
    assert found.replayed == 1.0
    assert ["weight version 1" in found.errors[0], "weight version 2" in found.errors[1]] == [True, True]
