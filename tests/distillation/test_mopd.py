"""Equations 2 to 4 against a loop over sequences and tokens in float64, and one answer under each layout."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cascade_rl.distillation.mopd import reverse_kl, with_teacher
from cascade_rl.distillation.objectives import SampledLoss
from cascade_rl.distillation.teachers import Teachers
from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.train.packing import MicroBatch, pack
from cascade_rl.engine.train.trainer import Trainer, read_logprob
from tests.engine.models import tiny
from tests.gloo import run_ranks

LENGTHS = (3, 9, 5, 12, 4)
DOMAINS = ("math", "code", "math", "code", "math")
MOE_LAYERS, TOPK, EXPERTS = 2, 2, 8


def drawn(rng: np.random.Generator, length: int) -> TrainSequence:
    """The sampler's log-probs are about a third off: a part of the ratios is out of the band."""
    routes = [rng.permutation(EXPERTS // 2)[:TOPK] for _ in range(length * MOE_LAYERS)]
    return TrainSequence(
        token_ids=rng.integers(0, tiny.VOCABULARY, length + 1),
        loss_mask=np.arange(length) >= length // 3,
        temperature=0.8,
        per_token={"rollout_logprob": rng.normal(-5, 0.6, length).astype(np.float32)},
        routes=np.array(routes, np.int16).reshape(length, MOE_LAYERS, TOPK),
    )


def sequences() -> list[TrainSequence]:
    rng = np.random.default_rng(5)
    return [drawn(rng, length) for length in LENGTHS]


def logprobs(seed: int, around: float = -5.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(around, 0.6, length).astype(np.float32) for length in LENGTHS]


def with_advantage(sequence: TrainSequence, teacher: np.ndarray, student: np.ndarray) -> TrainSequence:
    return with_teacher(sequence, {"logprob": teacher}, student)


def distilled(teacher: list[np.ndarray], student: list[np.ndarray]) -> list[TrainSequence]:
    return [with_advantage(*parts) for parts in zip(sequences(), teacher, student, strict=True)]


def in_float64(batch: MicroBatch) -> MicroBatch:
    """`share` is 1 / |V| of float32: made anew, so that nothing of the comparison is rounded."""
    exact = {name: values.double() for name, values in batch.per_token.items()}
    counts = torch.round(1 / exact["share"])
    return replace(batch, per_token=exact | {"share": torch.where(batch.loss_mask, 1 / counts, 0)})


def loss_and_gradient(
    batch: list[TrainSequence], student: list[np.ndarray], loss: SampledLoss
) -> tuple[dict, np.ndarray]:
    """Of the whole batch in one micro-batch; the gradient [tokens] is by the student's log-probs."""
    (packed,) = pack(batch, [range(len(batch))])
    logprob = torch.from_numpy(np.concatenate(student)).double().requires_grad_()
    objective, sums = loss(logprob, torch.ones_like(logprob), in_float64(packed))
    (objective / loss.denominator(batch)).backward()
    means = {name: float(total) / loss.denominator(batch) for name, total in sums.items()}
    assert logprob.grad is not None
    return means, logprob.grad.numpy()


def oracle(teacher: list[np.ndarray], student: list[np.ndarray]) -> tuple[dict[str, float], np.ndarray]:
    """The equations, one token after another."""
    batch = sequences()
    names = ("loss", "reverse_kl", "importance_weight", "importance_dropped")
    means, gradients = dict.fromkeys(names, 0.0), []
    for sequence, of_teacher, of_student in zip(batch, teacher, student, strict=True):
        valid = np.flatnonzero(sequence.loss_mask)  # V(y)
        gradient = np.zeros(len(of_student))
        for t in valid:
            a = float(of_teacher[t] - of_student[t])  # in float32, as the loop takes it
            r = np.exp(float(of_student[t]) - float(sequence.per_token["rollout_logprob"][t]))
            w = r if 0.5 <= r <= 2.0 else 0.0
            each = 1 / (len(valid) * len(batch))
            means["loss"] -= w * a * float(of_student[t]) * each
            means["reverse_kl"] -= a * each
            means["importance_weight"] += w * each
            means["importance_dropped"] += (w == 0) * each
            gradient[t] = -w * a * each
        gradients.append(gradient)
    return means, np.concatenate(gradients)


def test_loss_and_gradient_are_those_of_the_equations() -> None:
    teacher, student = logprobs(1), logprobs(2)
    found, gradient = loss_and_gradient(distilled(teacher, student), student, SampledLoss())
    expected, expected_gradient = oracle(teacher, student)
    assert 0.1 < expected["importance_dropped"] < 0.9
    assert found["entropy"] == pytest.approx(1, abs=1e-12)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-12), name
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-12)


def test_a_teacher_that_agrees_teaches_nothing_and_another_one_does() -> None:
    student = logprobs(2)
    found, gradient = loss_and_gradient(distilled(student, student), student, SampledLoss())
    assert found["loss"] == found["reverse_kl"] == 0
    assert not gradient.any()
    _, gradient = loss_and_gradient(distilled(logprobs(1), student), student, SampledLoss())
    assert gradient.any()


def test_the_gradient_pulls_to_the_teacher() -> None:
    """More of a token that the teacher gives more to: a step against the gradient has the sign of a."""
    teacher, student = logprobs(1), logprobs(2)
    _, gradient = loss_and_gradient(distilled(teacher, student), student, SampledLoss(low=0, high=np.inf))
    mask = np.concatenate([sequence.loss_mask for sequence in sequences()])
    advantage = (np.concatenate(teacher) - np.concatenate(student))[mask]
    assert (np.sign(-gradient[mask]) == np.sign(advantage)).all()


@pytest.mark.parametrize(
    ("ratio", "kept"), [(0.499, False), (0.501, True), (1.0, True), (1.999, True), (2.001, False), (1e30, False)]
)
def test_a_token_outside_the_band_is_dropped_and_not_clamped(ratio: float, kept: bool) -> None:
    """It keeps its place in the mean: the other of the two tokens has half the weight either way."""
    per_token = {"rollout_logprob": np.array([0, -np.log(ratio)], np.float32)}
    two = TrainSequence(np.arange(3), np.array([True, True]), per_token=per_token)
    student = np.zeros(2, np.float32)
    _, gradient = loss_and_gradient([with_advantage(two, student + 1, student)], [student], SampledLoss())
    np.testing.assert_allclose(gradient, [-0.5, -0.5 * ratio if kept else 0], rtol=1e-6)


def test_the_ends_of_the_band_are_inside() -> None:
    student = logprobs(2)
    on_policy = [replace(s, per_token={"rollout_logprob": own}) for s, own in zip(sequences(), student, strict=True)]
    batch = [with_advantage(s, own + 1, own) for s, own in zip(on_policy, student, strict=True)]
    assert loss_and_gradient(batch, student, SampledLoss(low=1, high=1))[0]["importance_dropped"] == 0


def test_what_is_outside_the_mask_or_the_band_may_be_anything() -> None:
    teacher, student = logprobs(1), logprobs(2)
    batch = distilled(teacher, student)
    expected = loss_and_gradient(batch, student, SampledLoss())
    ratios = [np.exp(own - s.per_token["rollout_logprob"]) for own, s in zip(student, batch, strict=True)]
    unused = [~s.loss_mask | (ratio < 0.5) | (ratio > 2) for s, ratio in zip(batch, ratios, strict=True)]
    spoilt = [
        replace(s, per_token=s.per_token | {"advantage": np.where(hole, np.inf, s.per_token["advantage"])})
        for s, hole in zip(batch, unused, strict=True)
    ]
    found = loss_and_gradient(spoilt, student, SampledLoss())
    assert found[0]["loss"] == expected[0]["loss"]
    np.testing.assert_array_equal(found[1], expected[1])


def test_reverse_kl_is_told_by_domain() -> None:
    teacher, student = logprobs(1), logprobs(2)
    found = reverse_kl(distilled(teacher, student), DOMAINS)
    gaps = [(own - of)[s.loss_mask].mean() for own, of, s in zip(student, teacher, sequences(), strict=True)]
    assert found == {
        "reverse_kl_code": pytest.approx((gaps[1] + gaps[3]) / 2, rel=1e-6),
        "reverse_kl_math": pytest.approx((gaps[0] + gaps[2] + gaps[4]) / 3, rel=1e-6),
    }


# On the real trainer.


WIDER = {"hidden_size": 96, "num_hidden_layers": 3, "vocab_size": tiny.VOCABULARY + 10, "tie_word_embeddings": False}


def make_models(tmp_path_factory: pytest.TempPathFactory, *, other: bool = False) -> dict[str, Path]:
    """A student and two teachers, random weights of one architecture. With `other`, the maths teacher is of another
    one: wider, dense, with more rows of padding behind the vocabulary."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("student", "math", "code")}
    for seed, (name, folder) in enumerate(folders.items()):
        tiny.save(tiny.qwen3(**WIDER) if other and name == "math" else tiny.nemotron_h(), folder)
        noise, file = torch.Generator().manual_seed(seed), folder / "model.safetensors"
        off = {name: w + 0.05 * torch.randn(w.shape, generator=noise) for name, w in load_file(file).items()}
        save_file(off, file, metadata={"format": "pt"})
    return folders


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_models(tmp_path_factory)


def trainer(folder: Path, parallel: ParallelConfig, token_budget: int) -> Trainer:
    # at a small eps Adam turns the rounding of near-zero gradients into full steps
    optimizer = OptimizerConfig(lr=1e-2, eps=1e-4)
    hf_config = json.loads((folder / "config.json").read_text())
    made = Trainer(hf_config, parallel, optimizer, total_steps=4, token_budget=token_budget, seed=1)
    made.load_hf(folder)
    return made


def free(batch: list[TrainSequence]) -> list[TrainSequence]:
    return [replace(sequence, routes=None) for sequence in batch]


def logprobs_of(teachers: Teachers) -> list[np.ndarray]:
    return [told["logprob"] for told in teachers.read(sequences(), DOMAINS, read_logprob)]


def step(models: dict[str, Path], parallel: ParallelConfig, token_budget: int) -> dict[str, list]:
    """One step of the loop: student, teachers, update. The sampler's log-probs are a given part off the student's."""
    initialize_distributed(parallel, seed=1)
    policy = trainer(models["student"], parallel, token_budget)
    teachers = Teachers(policy, {"math": models["math"], "code": models["code"]})
    student = policy.log_probs(sequences())
    teacher = logprobs_of(teachers)
    again = policy.log_probs(sequences())
    batch = [
        with_advantage(replace(s, per_token={"rollout_logprob": own - noise}), of, own)
        for s, own, of, noise in zip(sequences(), student, teacher, logprobs(3, around=0), strict=True)
    ]
    metrics = policy.update(batch, SampledLoss(), 0)
    both = logprobs_of(Teachers(policy, {"math": models["code"], "code": models["code"]}))
    after = policy.log_probs(sequences())
    return {"student": student, "teacher": teacher, "again": again, "metrics": [metrics], "after": after, "both": both}


@pytest.fixture(scope="module")
def one_process(models: dict[str, Path]) -> dict[str, list]:
    return run_ranks(1, step, models, ParallelConfig(), 64)[0]


def alone(folder: Path) -> list[np.ndarray]:
    initialize_distributed(ParallelConfig(), seed=1)
    return trainer(folder, ParallelConfig(), 64).log_probs(free(sequences()))


def test_each_sequence_is_scored_by_the_teacher_of_its_domain(
    models: dict[str, Path], one_process: dict[str, list]
) -> None:
    """With that teacher's own experts, not those that the student's sampler chose."""
    expected = {name: run_ranks(1, alone, models[name])[0] for name in ("math", "code")}
    for found, domain, index in zip(one_process["teacher"], DOMAINS, range(len(DOMAINS)), strict=True):
        np.testing.assert_allclose(found, expected[domain][index], atol=2e-5)
    for found, wanted in zip(one_process["both"], expected["code"], strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_the_student_comes_back_to_the_bit(one_process: dict[str, list]) -> None:
    np.testing.assert_array_equal(np.concatenate(one_process["again"]), np.concatenate(one_process["student"]))
    assert np.abs(np.concatenate(one_process["after"]) - np.concatenate(one_process["student"])).max() > 0.05


@pytest.mark.parametrize(
    ("parallel", "token_budget"),
    [(ParallelConfig(expert=2), 16), (ParallelConfig(tensor=2, sequence=True), 64), (ParallelConfig(context=2), 64)],
    ids=["data 2, expert 2", "tensor 2", "context 2"],
)
def test_every_layout_gives_the_answer_of_one_process(
    models: dict[str, Path], one_process: dict[str, list], parallel: ParallelConfig, token_budget: int
) -> None:
    (expected,) = one_process["metrics"]
    assert 0.05 < expected["importance_dropped"] < 0.9
    for found in run_ranks(2, step, models, parallel, token_budget):
        for name in ("loss", "reverse_kl", "importance_weight", "importance_dropped", "entropy", "grad_norm"):
            assert found["metrics"][0][name] == pytest.approx(expected[name], rel=2e-4), name
        for name in ("teacher", "after"):
            np.testing.assert_allclose(np.concatenate(found[name]), np.concatenate(one_process[name]), atol=2e-3)
