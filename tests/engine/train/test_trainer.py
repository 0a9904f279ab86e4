"""A policy that learns, replays routes, goes on from a checkpoint, and refuses a gradient that is not finite."""

import json
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.backend.ranks import is_rank0
from cascade_rl.engine.backend.raw_arrays import ALIGNMENT
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.train import checkpoint
from cascade_rl.engine.train.losses import Loss, PolicyLoss, SftLoss
from cascade_rl.engine.train.reference import Reference
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.kernels.policy_objective import PolicyObjective
from cascade_rl.rl_stages.scoring.normaliser import with_shares
from tests.engine.backend.test_replicas import counted
from tests.engine.models import tiny
from tests.gloo import run_ranks

# at a small eps Adam turns the rounding of near-zero gradients into full steps
OPTIMIZER = OptimizerConfig(lr=1e-2, eps=1e-4, weight_decay=0.1)
MOE_LAYERS, TOPK, EXPERTS = 2, 2, 8


@dataclass(frozen=True)
class Answer:
    metrics: dict[str, float]
    before: list[np.ndarray]
    after: list[np.ndarray]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nemotron_h")
    tiny.save(tiny.nemotron_h(), folder)
    return folder


def sequences(count: int = 12) -> list[TrainSequence]:
    rng = np.random.default_rng(3)
    return with_shares([sequence(rng, int(rng.integers(4, 30))) for _ in range(count)], "prompt", group=2)


def sequence(rng: np.random.Generator, length: int) -> TrainSequence:
    def draw() -> np.ndarray:
        return rng.normal(size=length - 1).astype(np.float32)

    routes = [rng.permutation(EXPERTS // 2)[:TOPK] for _ in range((length - 1) * MOE_LAYERS)]
    return TrainSequence(
        token_ids=rng.integers(0, tiny.VOCABULARY, length),
        loss_mask=rng.random(length - 1) < 0.7,
        temperature=0.8,
        per_token={"advantage": draw(), "rollout_logprob": draw() - 5, "reference_logprob": draw() - 5},
        routes=np.array(routes, np.int16).reshape(length - 1, MOE_LAYERS, TOPK),
    )


def trainer(model: Path, parallel: ParallelConfig, token_budget: int) -> Trainer:
    hf_config = json.loads((model / "config.json").read_text())
    made = Trainer(hf_config, parallel, OPTIMIZER, total_steps=4, token_budget=token_budget, seed=1)
    made.load_hf(model)
    return made


def step(model: Path, parallel: ParallelConfig, token_budget: int, loss: Loss) -> Answer:
    initialize_distributed(parallel, seed=1)
    policy = trainer(model, parallel, token_budget)
    before = policy.log_probs(sequences())
    metrics = policy.update(sequences(), loss, 0)
    return Answer(metrics, before, policy.log_probs(sequences()))


LOSSES = {"sft": SftLoss(), "grpo": PolicyLoss(PolicyObjective(kl_coefficient=0.1))}


@pytest.fixture(scope="module")
def one_process(model: Path) -> dict[str, Answer]:
    return {name: run_ranks(1, step, model, ParallelConfig(), 512, loss)[0] for name, loss in LOSSES.items()}


def test_update_moves_the_policy(one_process: dict[str, Answer]) -> None:
    answer = one_process["sft"]
    assert np.abs(np.concatenate(answer.after) - np.concatenate(answer.before)).max() > 0.1


@dataclass(frozen=True)
class Held:
    """Dtypes of what a trainer holds, and the largest |change| by a small step of any weight, and of any of Adam's."""

    parameters: set[torch.dtype]
    in_float32: set[torch.dtype]
    weight_changed: float
    adam_changed: float


def small_step_in_bfloat16(model: Path) -> Held:
    parallel = ParallelConfig(precision="bfloat16")
    initialize_distributed(parallel, seed=1)
    policy = trainer(model, parallel, 512)
    policy.optimizer_config = replace(OPTIMIZER, lr=1e-7)
    norms = [p for name, p in policy.module.named_parameters() if name.endswith("norm.weight")]  # near 1
    adams = [p for part in policy.optimizer.chained_optimizers for p in chain(*part.shard_fp32_from_float16_groups)]
    weights, masters = ([tensor.detach().clone() for tensor in held] for held in (norms, adams))
    policy.update(sequences(), SftLoss(), 0)

    def changed(now: list[torch.Tensor], before: list[torch.Tensor]) -> float:
        return max(float((one - other).abs().max()) for one, other in zip(now, before, strict=True))

    return Held(
        {parameter.dtype for parameter in policy.module.parameters()},
        {tensor.dtype for tensor in (*adams, *(p.main_grad for p in norms), *policy.module.buffers())},
        changed(norms, weights),
        changed(adams, masters),
    )


def test_in_bfloat16_sums_masters_and_biases_are_float32_and_small_steps_are_not_lost(model: Path) -> None:
    """All parameters are of one dtype, also A_log and D, which Megatron makes in float32."""
    (held,) = run_ranks(1, small_step_in_bfloat16, model)
    assert held.parameters == {torch.bfloat16}
    assert held.in_float32 == {torch.float32}
    assert (held.weight_changed, held.adam_changed > 0) == (0, True)


def in_parts(model: Path) -> tuple[Answer, Answer]:
    """Three updates of one call, of whose parts one has no loss token; and the same two by hand."""
    drawn = sequences()
    silent = [replace(s, loss_mask=np.zeros_like(s.loss_mask)) for s in drawn[4:8]]
    initialize_distributed(ParallelConfig(), seed=1)
    policy = trainer(model, ParallelConfig(), 512)
    metrics = policy.update([*drawn[:4], *silent, *drawn[8:]], LOSSES["grpo"], 1, updates=3)
    whole = Answer(metrics, [policy.expert_tokens], policy.log_probs(drawn))
    policy = trainer(model, ParallelConfig(), 512)
    taken, tokens = [], []
    for part in (drawn[:4], drawn[8:]):
        taken.append((policy.update(part, LOSSES["grpo"], 1), LOSSES["grpo"].denominator(part)))
        tokens.append(policy.expert_tokens)
    total = sum(count for _, count in taken)
    means = {name: sum(learned[name] * count for learned, count in taken) / total for name in taken[0][0]}
    means["grad_norm"] = (taken[0][0]["grad_norm"] + taken[1][0]["grad_norm"]) / 2
    return whole, Answer(means, [tokens[0] + tokens[1]], policy.log_probs(drawn))


def test_several_updates_are_those_of_the_parts_one_after_another(model: Path) -> None:
    """With the learning rate of one step, and metrics that are means over all prompts."""
    whole, by_hand = run_ranks(1, in_parts, model)[0]
    np.testing.assert_array_equal(np.concatenate(whole.after), np.concatenate(by_hand.after))
    np.testing.assert_array_equal(whole.before[0], by_hand.before[0])
    assert whole.metrics["replay_fraction"] == 1.0
    of_tokens = whole.metrics.keys() - {"expert_load_ratio", "experts_unused"}  # of the experts' tokens in all
    assert {"loss", "entropy", "reference_kl", "lr", "grad_norm"} <= of_tokens
    for name in of_tokens:
        assert whole.metrics[name] == pytest.approx(by_hand.metrics[name], rel=1e-12), name


@dataclass(frozen=True)
class Share:
    """Of one rank: the sequences of its micro-batches by their places, the bytes that it got for log-probs and for an
    update, and how many log-probs came back."""

    places: set[int]
    read: int
    updated: int
    back: int


def shared_out(model: Path) -> Share:
    """Only rank 0 has the batch."""
    parallel = ParallelConfig(tensor=2, sequence=True)
    initialize_distributed(parallel, seed=1)
    policy, given = trainer(model, parallel, 64), sequences() if is_rank0() else []
    with counted() as read:
        logprobs = policy.log_probs(given)
    with counted() as updated:
        policy.update(given, LOSSES["grpo"], 0)
    places = set(chain(*(batch.index for batch in policy.local_batches(given))))
    return Share(places, sum(read), sum(updated), len(logprobs))


def test_a_rank_gets_its_replicas_sequences_once_and_rank_0_alone_the_log_probs(model: Path) -> None:
    """Two replicas of two ranks."""
    batch = sequences()
    ranks = run_ranks(4, shared_out, model)
    assert ranks[0].places == ranks[1].places
    assert ranks[2].places == ranks[3].places == set(range(len(batch))) - ranks[0].places
    for rank in ranks[1:]:
        own = [batch[place] for place in rank.places]
        assert rank.read == sum(aligned(s.token_ids, s.loss_mask, s.routes) for s in own)
        assert rank.updated == sum(aligned(*s.per_token.values()) for s in own)
        assert rank.back == 0
    assert ranks[0].back == len(batch)


def aligned(*arrays: np.ndarray) -> int:
    return sum(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays)


def replayed_and_free(model: Path) -> tuple[list[np.ndarray], list[np.ndarray], float]:
    initialize_distributed(ParallelConfig(), seed=1)
    policy = trainer(model, ParallelConfig(), 512)
    free = [TrainSequence(token_ids=s.token_ids, loss_mask=s.loss_mask, temperature=0.8) for s in sequences()]
    without = policy.log_probs(free)
    return policy.log_probs(sequences()), without, policy.update(free, SftLoss(), 0)["replay_fraction"]


def test_replayed_routes_change_the_answer_and_their_absence_is_seen(model: Path) -> None:
    replayed, free, fraction = run_ranks(1, replayed_and_free, model)[0]
    assert np.abs(np.concatenate(replayed) - np.concatenate(free)).max() > 1e-3
    assert fraction == 0.0


def saved_and_continued(model: Path, folder: Path) -> list[dict[str, float]]:
    initialize_distributed(ParallelConfig(expert=2), seed=1)
    policy = trainer(model, ParallelConfig(expert=2), 64)
    policy.update(sequences(), SftLoss(), 0)
    checkpoint.save(policy, folder)
    return [policy.update(sequences(), SftLoss(), at) for at in (1, 2)]


def loaded_and_continued(model: Path, folder: Path, parallel: ParallelConfig) -> list[dict[str, float]]:
    initialize_distributed(parallel, seed=2)
    policy = trainer(model, parallel, 64)
    checkpoint.load(policy, folder)
    return [policy.update(sequences(), SftLoss(), at) for at in (1, 2)]


def test_checkpoint_continues_with_the_same_steps(model: Path, tmp_path: Path) -> None:
    """In the same layout to the bit, in another one to rounding."""
    expected = run_ranks(2, saved_and_continued, model, tmp_path)[0]
    assert run_ranks(2, loaded_and_continued, model, tmp_path, ParallelConfig(expert=2))[0] == expected
    wide = ParallelConfig(tensor=2, expert=2, sequence=True)
    resharded = run_ranks(2, loaded_and_continued, model, tmp_path, wide)[0]
    for found, wanted in zip(resharded, expected, strict=True):
        assert found == pytest.approx(wanted, rel=1e-4)


def after_nan(model: Path) -> tuple[list[np.ndarray], list[np.ndarray], dict[str, float]]:
    initialize_distributed(ParallelConfig(expert=2), seed=1)
    policy = trainer(model, ParallelConfig(expert=2), 64)
    before = policy.log_probs(sequences())
    spoilt = [replace(s, per_token=s.per_token | {"advantage": s.per_token["advantage"] * np.nan}) for s in sequences()]
    with pytest.raises(FloatingPointError, match="gradient norm is nan at step 0"):
        policy.update([*sequences()[1:], spoilt[0]], LOSSES["grpo"], 0)
    return before, policy.log_probs(sequences()), policy.update(sequences(), LOSSES["grpo"], 0)


def test_a_gradient_that_is_not_finite_leaves_the_policy_as_it_was(model: Path, one_process: dict[str, Answer]) -> None:
    """Of two ranks, one has the bad sequence; both stop, and both can go on."""
    for before, after, metrics in run_ranks(2, after_nan, model):
        np.testing.assert_allclose(np.concatenate(after), np.concatenate(before), atol=1e-4)
        assert metrics["loss"] == pytest.approx(one_process["grpo"].metrics["loss"], rel=1e-3)


def with_reference(model: Path) -> tuple[list[np.ndarray], ...]:
    initialize_distributed(ParallelConfig(), seed=1)
    policy = trainer(model, ParallelConfig(), 512)
    reference = Reference(policy)
    first = policy.log_probs(sequences())
    policy.update(sequences(), SftLoss(), 0)
    moved = policy.log_probs(sequences())
    with reference.in_place():
        kept = policy.log_probs(sequences())
    return first, moved, kept, policy.log_probs(sequences())


def test_reference_is_the_first_policy_and_leaves_the_trained_one(model: Path) -> None:
    first, moved, kept, again = map(np.concatenate, run_ranks(1, with_reference, model)[0])
    np.testing.assert_array_equal(kept, first)
    np.testing.assert_array_equal(again, moved)
    assert np.abs(moved - first).max() > 0.1
