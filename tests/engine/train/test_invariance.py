"""One global batch, one answer: loss, every gradient, router biases and the step, however the work is cut.

The reference is one process with one micro-batch. Every layout then runs the same updates on 1, 2 or 4 ranks, with
small micro-batches and so with another packing, and every rank compares every gradient tensor that it holds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors.torch import load_file

from cascade_rl.engine.backend.process_groups import cut_ranks, initialize_distributed
from cascade_rl.engine.backend.ranks import from_all, is_rank0
from cascade_rl.engine.core.rollouts import Kept
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import export_hf, family_of, read_config
from cascade_rl.engine.models.build import place_of_this_rank
from cascade_rl.engine.train import checkpoint
from cascade_rl.engine.train.losses import Loss, PolicyLoss, SftLoss
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.kernels.policy_objective import PolicyObjective
from cascade_rl.rl_stages.scoring.normaliser import with_shares
from tests.engine.models import tiny
from tests.gloo import run_ranks

BOUND = 1e-5
# at a small eps Adam turns the rounding of near-zero gradients into full steps
OPTIMIZER = OptimizerConfig(lr=1e-2, eps=1e-4, weight_decay=0.1)
MOE_LAYERS, TOPK = 2, 2  # of all models with experts
LOSSES: dict[str, Loss] = {
    "sft": SftLoss(),
    "grpo": PolicyLoss(PolicyObjective()),
    "kl": PolicyLoss(PolicyObjective(importance="off", kl_coefficient=1.0)),
    "gspo": PolicyLoss(PolicyObjective("gspo", clip_high=0.5, dual_clip=3.0)),
}
EXPERTS = {"nemotron_h": 8, "qwen3_moe": 4, "qwen3_next": 4, "llama": 0, "glm4_moe": 8, "deepseek_v3": 8}
TOKEN_BUDGETS = {1: 32, 2: 64, 4: 64}

TP2 = {"tensor": 2, "sequence": True}
VP2 = {"pipeline": 2, "virtual_pipeline": 2}
LAYOUTS: dict[str, tuple[int, ParallelConfig]] = {
    "small micro-batches": (1, ParallelConfig()),
    "DP2": (2, ParallelConfig()),
    "TP2 SP": (2, ParallelConfig(**TP2)),
    "TP2 SP EP2": (2, ParallelConfig(**TP2, expert=2)),
    "TP2 SP ETP2": (2, ParallelConfig(**TP2, expert_tensor=2)),
    "PP2": (2, ParallelConfig(pipeline=2)),
    "PP2 VP2": (2, ParallelConfig(**VP2)),
    "EP2": (2, ParallelConfig(expert=2)),
    "CP2": (2, ParallelConfig(context=2)),
    "CP2 EP2": (2, ParallelConfig(context=2, expert=2)),
    "TP2 SP CP2 EP2": (4, ParallelConfig(**TP2, context=2, expert=2)),
    "TP2 SP ETP2 EP2": (4, ParallelConfig(**TP2, expert_tensor=2, expert=2)),
    "TP2 SP PP2 EP2": (4, ParallelConfig(**TP2, pipeline=2, expert=2)),
    "PP2 VP2 CP2": (4, ParallelConfig(**VP2, context=2)),
    "DP2 CP2": (4, ParallelConfig(context=2)),
}
TP4 = {"TP4 SP, 2 key/value heads": (4, ParallelConfig(tensor=4, sequence=True))}
MATRIX: dict[str, dict[str, tuple[int, ParallelConfig]]] = {
    "nemotron_h": {
        **LAYOUTS,
        "PP2 uneven": (2, ParallelConfig(pipeline=2, pipeline_layers=(4, 2))),
        "PP2 VP2 uneven": (2, ParallelConfig(**VP2, pipeline_layers=(1, 1, 3, 1))),
    },
    "qwen3_moe": {**LAYOUTS, **TP4, "PP2 uneven": (2, ParallelConfig(pipeline=2, pipeline_layers=(1, 3)))},
    "qwen3_next": {**LAYOUTS, **TP4},
    # dense, with a tied head
    "llama": {
        "TP2": (2, ParallelConfig(tensor=2)),
        "PP2": (2, ParallelConfig(pipeline=2)),
        "TP2 PP2 VP2": (4, ParallelConfig(tensor=2, **VP2)),
    },
    "glm4_moe": LAYOUTS,
    "deepseek_v3": LAYOUTS,
}
BIASED = ("nemotron_h", "glm4_moe", "deepseek_v3")  # whose routers choose by biased scores
LONG = ("qwen3_next", "glm4_moe", "deepseek_v3")


@dataclass(frozen=True)
class Answer:
    """Metrics and gradients (by HF name) of each loss; router biases after all of them; log-probs after the step, and
    how many numbers the ranks told rank 0 for these."""

    metrics: dict[str, dict[str, float]]
    gradients: dict[str, dict[str, np.ndarray]]
    biases: dict[str, np.ndarray]
    after: np.ndarray
    reported: int


def sequences(experts: int, count: int = 12) -> list[TrainSequence]:
    rng = np.random.default_rng(3)
    drawn = [sequence(rng, experts, int(rng.integers(4, 30))) for _ in range(count)]
    return with_shares(drawn, "prompt", group=4)


def sequence(rng: np.random.Generator, experts: int, length: int) -> TrainSequence:
    def draw() -> np.ndarray:
        return rng.normal(size=length - 1).astype(np.float32)

    routes = [rng.permutation(experts)[:TOPK] for _ in range((length - 1) * MOE_LAYERS)]
    token_ids = rng.integers(0, tiny.VOCABULARY, length)
    loss_mask = rng.random(length - 1) < 0.7
    per_token = {"advantage": draw(), "rollout_logprob": draw() - 5, "reference_logprob": draw() - 5}
    return TrainSequence(
        token_ids=token_ids,
        loss_mask=loss_mask,
        temperature=0.8,
        per_token=per_token | {"old_logprob": per_token["reference_logprob"][::-1]},
        routes=np.array(routes, np.int16).reshape(length - 1, MOE_LAYERS, TOPK) if experts else None,
        kept=None if length % 4 else kept(token_ids),
    )


def kept(token_ids: np.ndarray) -> Kept:
    """At each position up to 7 tokens beside the next one, or the whole vocabulary."""
    rng = np.random.default_rng([3, *token_ids])  # one by which no tensor's gradient is next to nothing
    counts = rng.integers(0, 9, len(token_ids) - 1, dtype=np.int32)
    others = [rng.choice(tiny.VOCABULARY, 9, replace=False) for _ in counts]
    rows = [[t, *other[other != t]][:n] for t, other, n in zip(token_ids[1:], others, counts, strict=True)]
    return Kept(np.concatenate(rows).astype(np.int32), counts)


def answer(model: Path, parallel: ParallelConfig, token_budget: int) -> Answer:
    """Collective: gradients and biases are those that this rank holds, in the shape of the whole, elsewhere NaN."""
    batch = sequences(EXPERTS[model.name])
    policy = Trainer(read_config(model), parallel, OPTIMIZER, total_steps=4, token_budget=token_budget, seed=1)
    policy.load_hf(model)
    step = policy.optimizer.step
    metrics: dict[str, dict[str, float]] = {}
    gradients: dict[str, dict[str, np.ndarray]] = {}

    def capture() -> tuple[bool, float, int]:
        gradients[loss] = in_hf_names(policy, whole_gradients(policy))
        return step() if loss == list(LOSSES)[-1] else (True, policy.optimizer.get_grad_norm(), 0)

    policy.optimizer.step = capture
    for at, loss in enumerate(LOSSES):
        metrics[loss] = policy.update(batch if is_rank0() else [], LOSSES[loss], at)
    biases = in_hf_names(policy, {n: m for n, m in policy.module.named_buffers() if n.endswith("expert_bias")})
    after, reported = reported_log_probs(policy, batch)
    return Answer(metrics, gradients, biases, after, reported)


def reported_log_probs(policy: Trainer, batch: list[TrainSequence]) -> tuple[np.ndarray, int]:
    """All log-probs, and how many numbers the ranks told rank 0 for them."""
    told, to_rank0 = list[int](), policy.replicas.to_rank0

    def tell(mine: Any) -> list[Any]:
        told.extend(values.size for values in (mine["logprob"].values() if mine else ()))
        return to_rank0(mine)

    with mock.patch.object(policy.replicas, "to_rank0", tell):
        logprobs = np.concatenate(policy.log_probs(batch))
    return logprobs, sum(from_all(sum(told)))


def whole_gradients(policy: Trainer) -> dict[str, torch.Tensor]:
    """After the reduction each data parallel rank has a slice of the sums; here each gets all of them."""
    for ddp in policy.ddp:
        for buffer in ddp.buffers + ddp.expert_parallel_buffers:
            group = buffer.data_parallel_group
            for bucket in buffer.buckets:
                mine = bucket.grad_data.chunk(group.size())[group.rank()].clone()
                dist.all_gather_into_tensor(bucket.grad_data, mine, group=group)
    trained = ((name, p) for name, p in policy.module.named_parameters() if hasattr(p, "main_grad"))
    return {name: parameter.main_grad for name, parameter in trained}


def in_hf_names(policy: Trainer, held: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    name_map = family_of(policy.hf_config).name_map(policy.hf_config)
    whole = {name: np.full(tensor.shape, np.nan, np.float32) for name, tensor in name_map.hf_tensors().items()}
    written = set()
    for shard in name_map.shards(place_of_this_rank()):
        for block in shard.blocks if shard.name in held else ():
            whole[block.hf_name][block.hf_index] = held[shard.name][block.shard_index].numpy()
            written.add(block.hf_name)
    return {name: whole[name] for name in written}


@dataclass(frozen=True)
class Outcome:
    """An answer against that of one process: the largest gap of any gradient, with its name, for each loss."""

    metrics: dict[str, dict[str, float]]
    worst: dict[str, tuple[float, str]]
    held: set[str]
    biases_equal: bool
    after_gap: float
    reported: int


def outcomes(model: Path, layouts: dict[str, ParallelConfig], budget: int, expected: Answer) -> dict[str, Outcome]:
    found = {}
    initialize_distributed(ParallelConfig(), seed=1)
    for name, parallel in layouts.items():
        parallel_state.destroy_model_parallel()
        cut_ranks(parallel)
        here = answer(model, parallel, budget)
        found[name] = Outcome(
            here.metrics,
            {loss: max(gaps(tensors, expected.gradients[loss])) for loss, tensors in here.gradients.items()},
            set.intersection(*(set(tensors) for tensors in here.gradients.values())),
            all(np.array_equal(bias, expected.biases[name]) for name, bias in here.biases.items()),
            float(np.abs(here.after - expected.after).max()),
            here.reported,
        )
    return found


def gaps(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> list[tuple[float, str]]:
    """Norm of the difference, where this rank holds the tensor, over the norm of the whole tensor."""
    return [
        (float(np.linalg.norm(np.nan_to_num(here - expected[name])) / np.linalg.norm(expected[name])), name)
        for name, here in found.items()
    ]


def one_process(model: Path) -> Answer:
    initialize_distributed(ParallelConfig(), seed=1)
    return answer(model, ParallelConfig(), 512)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], tuple[Answer, list[dict[str, Outcome]]]]:
    """The answer of one process, and what each of so many ranks found in all layouts of that many ranks."""

    @cache
    def expected(model: str) -> tuple[Path, Answer]:
        folder = tmp_path_factory.mktemp("models") / model
        tiny.save(tiny.FAMILIES[model](), folder)
        return folder, run_ranks(1, one_process, folder)[0]

    @cache
    def of(model: str, ranks: int) -> tuple[Answer, list[dict[str, Outcome]]]:
        folder, wanted = expected(model)
        layouts = {name: parallel for name, (world, parallel) in MATRIX[model].items() if world == ranks}
        return wanted, run_ranks(ranks, outcomes, folder, layouts, TOKEN_BUDGETS[ranks], wanted)

    return of


def marks_of(model: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long] if model in LONG else []


def cases() -> list[Any]:
    return [pytest.param(model, layout, marks=marks_of(model)) for model in MATRIX for layout in MATRIX[model]]


@pytest.mark.parametrize(("model", "layout"), cases())
def test_every_layout_gives_the_answer_of_one_process(model: str, layout: str, measured: Callable) -> None:
    expected, ranks = measured(model, MATRIX[model][layout][0])
    for outcome in (rank[layout] for rank in ranks):
        assert max(outcome.worst.values()) < (BOUND, ""), outcome.worst
        for loss, metrics in expected.metrics.items():
            assert outcome.metrics[loss] == pytest.approx(metrics, rel=BOUND, abs=1e-7)
            assert metrics["replay_fraction"] == 1.0
        assert outcome.biases_equal
        assert outcome.reported == len(expected.after)  # each by one rank
        assert outcome.after_gap < 1e-4  # after an Adam step, which divides small gradients by small numbers
    assert set.union(*(rank[layout].held for rank in ranks)) == set(expected.gradients["sft"])


@pytest.mark.parametrize("model", [pytest.param(model, marks=marks_of(model)) for model in MATRIX])
def test_the_reference_is_no_trivial_one(model: str, measured: Callable) -> None:
    """Every gradient, loss and bias that the layouts are compared on is there, and moves."""
    expected, _ = measured(model, 2)
    for gradients in expected.gradients.values():
        assert all(np.isfinite(tensor).all() and np.abs(tensor).max() > 0 for tensor in gradients.values())
    assert len({metrics["loss"] for metrics in expected.metrics.values()}) == len(LOSSES)
    assert 0.1 < expected.metrics["gspo"]["clip_fraction"] < 0.9
    assert bool(expected.biases) == (model in BIASED)
    assert all(np.abs(bias).max() > 0 for bias in expected.biases.values())


def carried(model: Path, folder: Path, parallel: ParallelConfig) -> np.ndarray:
    """Copies a Hugging Face checkpoint, saves itself after one update, and makes another."""
    batch = sequences(EXPERTS[model.name])
    initialize_distributed(parallel, seed=1)
    policy = Trainer(read_config(model), parallel, OPTIMIZER, total_steps=4, token_budget=64, seed=1)
    policy.load_hf(model)
    export_hf(policy.module, policy.hf_config, folder / "export")
    policy.update(batch, SftLoss(), 0)
    (folder / "checkpoint").mkdir(exist_ok=True)
    checkpoint.save(policy, folder / "checkpoint")
    policy.update(batch, SftLoss(), 1)
    return np.concatenate(policy.log_probs(batch))


def continued(model: Path, folder: Path) -> np.ndarray:
    batch = sequences(EXPERTS[model.name])
    initialize_distributed(ParallelConfig(), seed=2)
    policy = Trainer(read_config(model), ParallelConfig(), OPTIMIZER, total_steps=4, token_budget=64, seed=2)
    checkpoint.load(policy, folder / "checkpoint")
    policy.update(batch, SftLoss(), 1)
    return np.concatenate(policy.log_probs(batch))


def test_chunks_are_saved_and_exported_by_the_names_of_the_whole(tmp_path: Path) -> None:
    model = tmp_path / "nemotron_h"
    tiny.save(tiny.nemotron_h(), model)
    layout = ParallelConfig(**VP2, pipeline_layers=(1, 1, 3, 1))
    expected = run_ranks(2, carried, model, tmp_path, layout)[0]
    original, copy = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "export"))
    assert copy.keys() == original.keys()
    assert [name for name in original if not torch.equal(original[name], copy[name])] == []
    np.testing.assert_allclose(run_ranks(1, continued, model, tmp_path)[0], expected, atol=1e-4)
