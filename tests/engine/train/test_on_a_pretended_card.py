"""The trainer on a card that is pretended: no op and no collective mixes host and card, in any phase of any layout."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from cascade_rl.distillation.objectives import ExactLoss, TopkLoss
from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.backend.ranks import barrier
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import read_config
from cascade_rl.engine.train.losses import PolicyLoss, SftLoss
from cascade_rl.engine.train.reference import HostCopy, Reference
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.engine.train.weights_digest import weights_digest
from cascade_rl.kernels.policy_objective import PolicyObjective
from tests.engine.models import tiny
from tests.engine.pretended_card import Card, pretended_card
from tests.engine.train.test_invariance import EXPERTS, TP2, sequences
from tests.gloo import run_ranks

ONE = ParallelConfig()
CASES = {
    ("nemotron_h", "1"): ONE,
    ("nemotron_h", "PP2"): ParallelConfig(pipeline=2),
    ("nemotron_h", "TP2 SP EP2"): ParallelConfig(**TP2, expert=2),
    ("nemotron_h", "CP2"): ParallelConfig(context=2),
    ("qwen3_moe", "TP2 SP EP2"): ParallelConfig(**TP2, expert=2),
    ("llama", "1"): ONE,
    ("nemotron_h", "1 in bfloat16"): ParallelConfig(precision="bfloat16"),
}
# Of the product's own lines in a phase of one rank: for each micro-batch, and beside them.
WAITS = {"probe": (2, 1), "log-probs": (2, 0), "RL": (1, 6), "SFT": (1, 4), "digest": (0, 1), "load": (0, 0)}
LAYERS = ("return model(", "get_forward_backward_func()", "_torch.py")  # Megatron's, and those that stand for a card's


@dataclass(frozen=True)
class Found:
    """What each phase mixed and waited for, by the line that asked for it."""

    micro_batches: int
    mixes: dict[str, Counter[str]]
    waits: dict[str, Counter[str]]


def some_sequences(model: Path) -> list[TrainSequence]:
    """Every line is reached by few."""
    return sequences(EXPERTS[model.name], 4)


def phases(trainer: Trainer, model: Path) -> dict[str, Callable[[], object]]:
    batch = some_sequences(model)
    without_routes = [replace(sequence, routes=None) for sequence in batch]
    reference, copy = Reference(trainer), HostCopy(trainer)

    def reference_log_probs() -> None:
        with reference.in_place():
            trainer.log_probs(batch)

    return {
        "load": lambda: trainer.load_hf(model),
        "probe": lambda: trainer.replayed_log_probs(batch),
        "log-probs": lambda: trainer.log_probs(batch),
        "RL": lambda: trainer.update(batch, PolicyLoss(PolicyObjective()), 0),
        "SFT": lambda: trainer.update(without_routes, SftLoss(), 1),
        "reference": reference_log_probs,
        "teacher from the host": lambda: copy.restore(trainer),
        "teacher, exact": lambda: trainer.read(without_routes, ExactLoss({}, "reverse").read),
        "teacher, top-k": lambda: trainer.read(without_routes, TopkLoss(4, "reverse").read),
        "digest": lambda: weights_digest(trainer),
    }


def played(model: Path, parallel: ParallelConfig) -> Found:
    initialize_distributed(parallel, seed=1)
    with pretended_card() as card:
        trainer = on_card(card, model, parallel)
        found = Found(len(trainer.local_batches(some_sequences(model))), {}, {})
        for name, phase in phases(trainer, model).items():
            card.mixes, card.waits = Counter(), Counter()
            phase()
            found.mixes[name], found.waits[name] = card.mixes, card.waits
    return found


def on_card(card: Card, model: Path, parallel: ParallelConfig) -> Trainer:
    """Megatron makes buffers with `device="cuda"` of its own, which the CPU shim turned into the host."""
    trainer = Trainer(read_config(model), parallel, OptimizerConfig(lr=1e-3), total_steps=8, token_budget=64, seed=1)
    card.take(trainer.module)
    for ddp in trainer.ddp:
        for buffer in (*ddp.buffers, *ddp.expert_parallel_buffers):
            card.mark([buffer.grad_data, buffer.param_data])
    for part in trainer.optimizer.chained_optimizers:
        card.mark(part.shard_fp32_from_float16_groups)  # Adam's weights in bfloat16
    return trainer


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in EXPERTS:
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(getattr(tiny, name)()).save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def found(models: Path) -> dict[tuple[str, str], list[Found]]:
    return {
        (name, layout): run_ranks(1 if layout.startswith("1") else 2, played, models / name, parallel)
        for (name, layout), parallel in CASES.items()
    }


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_no_phase_mixes_host_and_card(case: tuple[str, str], found: dict[tuple[str, str], list[Found]]) -> None:
    for rank in found[case]:
        assert {phase: mixes for phase, mixes in rank.mixes.items() if mixes} == {}


@pytest.mark.parametrize("phase", WAITS)
def test_the_host_waits_for_the_card_as_often_as_is_stated(
    phase: str, found: dict[tuple[str, str], list[Found]]
) -> None:
    (rank,) = found["nemotron_h", "1"]
    own = {line: n for line, n in rank.waits[phase].items() if not any(part in line for part in LAYERS)}
    for_each, beside = WAITS[phase]
    assert sum(own.values()) == for_each * rank.micro_batches + beside, own


def a_step_with_a_tensor_of_the_host(model: Path) -> Counter[str]:
    initialize_distributed(ONE, seed=1)
    with pretended_card() as card:
        trainer = on_card(card, model, ONE)
        card.mixes = Counter()
        replaying = trainer.replay.of
        trainer.replay.of = lambda chosen: replaying(chosen.cpu())
        trainer.replayed_log_probs(some_sequences(model))
        return card.mixes


def test_routes_on_the_host_are_found(models: Path) -> None:
    (mixes,) = run_ranks(1, a_step_with_a_tensor_of_the_host, models / "nemotron_h")
    assert any("aten.where" in mix and "moe/router_replay.py" in mix for mix in mixes)


def reduced_on_the_host() -> Counter[str]:
    initialize_distributed(ONE, seed=1)
    with pretended_card() as card:
        barrier()
        dist.all_reduce(torch.zeros(1))
        return card.mixes


def test_a_collective_of_nccl_with_a_tensor_of_the_host_is_found() -> None:
    (mixes,) = run_ranks(1, reduced_on_the_host)
    assert [mix.partition(" ")[0] for mix in mixes] == ["c10d.allreduce_.default"]
