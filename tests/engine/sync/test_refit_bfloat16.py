"""A trainer in bfloat16 and real engines: each slice of each weight has the trainer's bits, and the two sides agree."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout.client import RolloutEngine
from cascade_rl.engine.sync.weight_sync import Refit
from cascade_rl.engine.train.losses import SftLoss
from tests.engine.rollout import tiny_models
from tests.engine.sync.test_refit import CONFIG, LAYOUT, PROBE, draw, new_trainer, sampled_gap, training_sequence
from tests.gloo import run_ranks

HALF = replace(LAYOUT, precision="bfloat16")
GAPS = {"bfloat16": 0.5, "float32": 0.5}  # nats of any token, by the dtype of the engine
TME = 1.05


@dataclass
class Found:
    gaps: list[float]
    tme: float
    replayed: float


def with_vllm(folder: Path, config: RolloutConfig) -> Found:
    """Refit, sample, train, refit. A digest that differs raises RefitError."""
    trainer = new_trainer(folder, HALF)
    engine = RolloutEngine(folder, config, 1, folder / "log") if dist.get_rank() == 0 else None
    refit = Refit(trainer, engine, PROBE, config)
    gaps = [refit(0)]
    drawn = draw(engine, refit, [])
    tme = float(np.exp(sampled_gap(trainer, drawn)).mean())
    replayed = trainer.update([training_sequence(rollout) for rollout in drawn], SftLoss(), 0)["replay_fraction"]
    gaps.append(refit(1))
    if engine:
        engine.close()
    dist.barrier()
    return Found(gaps, tme, replayed)


@pytest.mark.long
@pytest.mark.parametrize("dtype", GAPS)
def test_the_engine_holds_the_bits_of_a_trainer_in_bfloat16(dtype: str, tmp_path: Path) -> None:
    """An engine in float32, as on a CPU, holds the same numbers."""
    config = replace(CONFIG, dtype=dtype, probe_bound=GAPS[dtype], checksum="digests", checksum_every=1)
    for found in run_ranks(2, with_vllm, tiny_models.write_config("nemotron_h", tmp_path / "model"), config):
        assert 0 < max(found.gaps) < GAPS[dtype]
        assert found.tme < TME
        assert found.replayed == 1.0
