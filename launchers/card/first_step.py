"""The first training step, refit and generation on a machine, as the stages of a cascade do them.

`python -m cascade_rl.launchers.card.first_step JSON` is the command of a rank. Rank 0 says what it found, and writes
the name of each check that passed to a file, so that the launcher knows where a killed rank was.
"""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.backend.ranks import from_rank0, is_rank0
from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig, RolloutConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import read_config
from cascade_rl.engine.rollout.client import RolloutEngine
from cascade_rl.engine.sync.probe import whole_sequence
from cascade_rl.engine.sync.sampler import Batch, sample
from cascade_rl.engine.sync.weight_sync import Refit
from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.launchers.card.check import Unfit

SEED, UPDATES, SEQUENCES, LENGTH, NEW_TOKENS, TOKEN_BUDGET = 1, 3, 4, 40, 16, 256


def step(trainer: Trainer) -> str:
    """Updates on the same sequences. Raises Unfit if the loss does not fall. Collective."""
    sequences = [whole_sequence(ids) for ids in texts(trainer.hf_config["vocab_size"])]
    found = [trainer.update(sequences, SftLoss(), number) for number in range(UPDATES)]
    first, last = found[0]["loss"], found[-1]["loss"]
    if not last < first:
        raise Unfit(
            f"expected the loss to fall over {UPDATES} steps on the same tokens, found {first:.4f} to {last:.4f}"
        )
    return f"loss {first:.4f} to {last:.4f}, gradient norm {found[0]['grad_norm']:.3f}"


def refitted(refit: Refit) -> str:
    """The trainer's weights in the engine, which scores with them. Raises as `Refit`. Collective."""
    gap = refit(refit.version + 1)
    return f"largest gap of a log-prob {gap:.1e}, expected at most {refit.config.probe_bound:.0e}"


def generated(refit: Refit) -> str:
    """Samples of the engine, scored by the trainer. Raises Unfit if the two disagree about them. Collective."""
    requests = [
        Request(f"doctor/{number}", tuple(ids), Sampling(max_new_tokens=NEW_TOKENS, temperature=1.0), number)
        for number, ids in enumerate(texts(refit.trainer.hf_config["vocab_size"]))
    ]
    rollouts = sample(Batch(refit.engine, requests) if refit.engine else None, refit)
    scored, replayed = refit.trainer.replayed_log_probs([_sequence(rollout) for rollout in rollouts])
    gap = from_rank0(lambda: _largest_gap(scored, rollouts))
    if not gap <= refit.config.probe_bound or replayed != 1.0:
        raise Unfit(
            f"expected trainer and engine to agree on sampled tokens within {refit.config.probe_bound:.0e} and all "
            f"experts to be replayed, found a gap of {gap:.1e} and {replayed:.4f}: see docs/symptoms/tme_grows.md"
        )
    return f"{len(requests) * NEW_TOKENS} tokens, largest gap of a log-prob {gap:.1e}, all experts replayed"


def texts(vocab_size: int) -> list[list[int]]:
    """Random token ids."""
    return np.random.default_rng(SEED).integers(3, vocab_size, (SEQUENCES, LENGTH)).tolist()


def _largest_gap(scored: Sequence[np.ndarray], rollouts: Sequence[Rollout]) -> float:
    ours = np.concatenate([found[-NEW_TOKENS:] for found in scored])
    return float(np.abs(ours - np.concatenate([rollout.logprobs for rollout in rollouts])).max())


def _sequence(rollout: Rollout) -> TrainSequence:
    ids = np.concatenate([rollout.prompt_ids, rollout.token_ids])
    return TrainSequence(ids, np.arange(1, len(ids)) >= len(rollout.prompt_ids), routes=rollout.routes)


def _rank(work: dict[str, Any]) -> None:
    folder, parallel, config = (
        Path(work["folder"]),
        ParallelConfig(**work["parallel"]),
        RolloutConfig(**work["rollout"]),
    )
    initialize_distributed(parallel, SEED)
    trainer = Trainer(
        read_config(folder),
        parallel,
        OptimizerConfig(lr=1e-3),
        total_steps=UPDATES,
        token_budget=TOKEN_BUDGET,
        seed=SEED,
    )
    _passed(folder, "step", lambda: step(trainer))
    with ExitStack() as exits:
        engine = RolloutEngine(folder, config, SEED, folder / "engine.log") if is_rank0() else None
        if engine:
            exits.enter_context(engine)
        refit = Refit(trainer, engine, texts(trainer.hf_config["vocab_size"]), config)
        _passed(folder, "refit", lambda: refitted(refit))
        _passed(folder, "generation", lambda: generated(refit))
    dist.destroy_process_group()


def _passed(folder: Path, name: str, check: Callable[[], str]) -> None:
    told = check()
    if is_rank0():
        print(f"{name}: {told}", flush=True)
        with (folder / "passed").open("a") as file:
            print(name, file=file)


if __name__ == "__main__":
    from cascade_rl.engine.core.quiet_libraries import quiet_libraries

    quiet_libraries()
    _rank(json.loads(sys.argv[1]))
