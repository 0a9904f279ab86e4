"""Each objective against float64 sums over transformers' logits, in each layout, with one teacher of the student's
architecture and one of another. And the teachers' pool: one checkpoint, one teacher, probed whenever it wakes."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from cascade_rl.distillation import teachers as pool
from cascade_rl.distillation.mopd import with_teacher
from cascade_rl.distillation.objectives import ExactLoss, SampledLoss, TopkLoss, top_ids
from cascade_rl.distillation.seats import StudentsSeat
from cascade_rl.distillation.teachers import TeacherChanged, Teachers
from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models.head import Head
from cascade_rl.engine.train.packing import MicroBatch, pack
from cascade_rl.engine.train.trainer import read_logprob
from tests.distillation.test_mopd import DOMAINS, free, make_models, sequences, trainer
from tests.engine.models import tiny
from tests.gloo import run_ranks

K, HEAT = 6, 0.8
NAMES = ("loss", "grad_norm")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_models(tmp_path_factory, other=True)


def batch() -> list[TrainSequence]:
    return free(sequences())


def losses(teachers: Teachers) -> dict[str, SampledLoss | TopkLoss | ExactLoss]:
    return {
        "sampled loss": SampledLoss(),
        "topk reverse_kl": TopkLoss(K, "reverse"),
        "topk forward_kl": TopkLoss(K, "forward"),
        "exact reverse_kl": ExactLoss(teachers.heads, "reverse"),
        "exact forward_kl": ExactLoss(teachers.heads, "forward"),
        "exact jsd": ExactLoss(teachers.heads, "jsd"),
    }


def steps(models: dict[str, Path], parallel: ParallelConfig, token_budget: int) -> dict[str, dict[str, float]]:
    """Metrics of both losses at the student's weights, which only the last update moves."""
    initialize_distributed(parallel, seed=1)
    policy = trainer(models["student"], parallel, token_budget)
    teachers = Teachers(policy, {"math": models["math"], "code": models["code"]}, keep_heads=True)
    student = policy.log_probs(batch())
    policy.optimizer.step = lambda: (True, policy.optimizer.get_grad_norm(), 0)
    metrics = {}
    for name, loss in losses(teachers).items():
        taught = teachers.read(batch(), DOMAINS, loss.read)
        learned = [with_teacher(*parts) for parts in zip(batch(), taught, student, strict=True)]
        metrics[name] = policy.update(learned, loss, 0)
    return metrics


@pytest.fixture(scope="module")
def one_process(models: dict[str, Path]) -> dict[str, dict[str, float]]:
    return run_ranks(1, steps, models, ParallelConfig(), 64)[0]


def log_softmax(model: torch.nn.Module, sequence: TrainSequence) -> Tensor:
    """float64 [n - 1, the student's vocabulary]."""
    logits = model(torch.from_numpy(sequence.token_ids[None, :-1])).logits[0, :, : tiny.VOCABULARY]
    return (logits.double() / HEAT).log_softmax(-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() * (p - q)).sum(-1)


def jsd(p: Tensor, q: Tensor) -> Tensor:
    middle = ((p.exp() + q.exp()) / 2).log()
    return (kl(p, middle) + kl(q, middle)) / 2


def coarse(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Both, where all but the teacher's K likeliest tokens are one."""
    ids = q.topk(K).indices
    mine, theirs = (x.gather(1, ids) for x in (p, q))
    rest = ((1 - x.exp().sum(-1, keepdim=True)).log() for x in (mine, theirs))
    return tuple(torch.cat([x, other], 1) for x, other in zip((mine, theirs), rest, strict=True))


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "topk reverse_kl": lambda student, teacher: kl(*coarse(student, teacher)),
    "topk forward_kl": lambda student, teacher: kl(*reversed(coarse(student, teacher))),
    "exact reverse_kl": kl,
    "exact forward_kl": lambda student, teacher: kl(teacher, student),
    "exact jsd": jsd,
}


def sampled(student: Tensor, teacher: Tensor, sequence: TrainSequence) -> Tensor:
    """Equations 2 to 4 of the sampled tokens, without the sum."""
    tokens = torch.from_numpy(sequence.token_ids[1:, None])
    own, theirs = (x.gather(1, tokens)[:, 0] for x in (student, teacher))
    ratio = (own.detach() - torch.from_numpy(sequence.per_token["rollout_logprob"])).exp()
    weight = ratio.where((ratio >= 0.5) & (ratio <= 2), 0)
    return -weight * (theirs - own.detach()) * own


def oracle(models: dict[str, Path]) -> dict[str, tuple[float, float]]:
    """Loss and gradient norm of transformers' model in float64."""
    load = partial(AutoModelForCausalLM.from_pretrained, experts_implementation="eager")
    loaded = {name: load(folder).double() for name, folder in models.items()}
    found = {}
    for name in (*DIVERGENCES, "sampled loss"):
        loaded["student"].zero_grad()
        means = []
        for sequence, domain in zip(batch(), DOMAINS, strict=True):
            with torch.no_grad():
                teacher = log_softmax(loaded[domain], sequence)
            student = log_softmax(loaded["student"], sequence)
            values = DIVERGENCES[name](student, teacher) if name in DIVERGENCES else sampled(student, teacher, sequence)
            means.append(values[torch.from_numpy(sequence.loss_mask)].mean())
        loss = torch.stack(means).mean()
        loss.backward()
        norms = [p.grad.norm() for p in loaded["student"].parameters() if p.grad is not None]
        found[name] = float(loss), float(torch.stack(norms).norm())
    return found


def test_loss_and_gradient_are_those_of_transformers_logits_in_float64(
    models: dict[str, Path], one_process: dict[str, dict[str, float]]
) -> None:
    expected = oracle(models)
    for kind in ("reverse_kl", "forward_kl"):
        assert 0.05 < expected[f"topk {kind}"][0] < 0.95 * expected[f"exact {kind}"][0]
    for name, (loss, norm) in expected.items():
        assert one_process[name]["loss"] == one_process[name][name.split()[1]] == pytest.approx(loss, rel=1e-4), name
        assert one_process[name]["grad_norm"] == pytest.approx(norm, rel=1e-3), name


@pytest.mark.parametrize(
    ("parallel", "token_budget"),
    [
        (ParallelConfig(expert=2), 16),
        (ParallelConfig(tensor=2, sequence=True), 64),
        (ParallelConfig(context=2), 64),
        (ParallelConfig(pipeline=2), 16),
    ],
    ids=["data 2, expert 2", "tensor 2", "context 2", "pipeline 2"],
)
def test_every_layout_gives_the_answer_of_one_process(
    models: dict[str, Path], one_process: dict[str, dict[str, float]], parallel: ParallelConfig, token_budget: int
) -> None:
    for found in run_ranks(2, steps, models, parallel, token_budget):
        for objective, expected in one_process.items():
            for name in NAMES:
                assert found[objective][name] == pytest.approx(expected[name], rel=2e-4), (objective, name)


def learned(models: dict[str, Path], parallel: ParallelConfig) -> list[float]:
    """The exact reverse KL to one teacher, update after update."""
    initialize_distributed(parallel, seed=1)
    policy, losses = trainer(models["student"], parallel, 64), []
    teachers = Teachers(policy, dict.fromkeys(DOMAINS, models["teacher"]), keep_heads=True)
    loss = ExactLoss(teachers.heads, "reverse")
    for step in range(40):
        taught, student = teachers.read(batch(), DOMAINS, loss.read), policy.log_probs(batch())
        distilled = [with_teacher(*parts) for parts in zip(batch(), taught, student, strict=True)]
        losses.append(policy.update(distilled, loss, step % 4)["loss"])
    return losses


@pytest.mark.long
def test_a_small_student_learns_from_a_bigger_teacher(tmp_path: Path) -> None:
    """One layer of width 32 comes near to four of width 128, on what it is shown; the same on two ranks."""
    small = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2}
    models = {"student": tmp_path / "student", "teacher": tmp_path / "teacher"}
    tiny.save(tiny.qwen3(**small), models["student"])
    tiny.save(tiny.qwen3(num_hidden_layers=4, hidden_size=128), models["teacher"])
    (one,) = run_ranks(1, learned, models, ParallelConfig())
    assert one[0] > 0.2
    assert one[-1] < 0.05 * one[0]
    for found in run_ranks(2, learned, models, ParallelConfig(tensor=2, sequence=True)):
        assert found == pytest.approx(one, rel=1e-2)


# One micro-batch, in float64.


def head(seed: int) -> Head:
    weight = torch.randn(32, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return Head(weight, vocab_size=30, tp_group=None)


def taught_batch(teacher: Head, taught: Tensor) -> MicroBatch:
    """Two answers of one teacher; `taught` are its states [5, 8]."""
    rng = np.random.default_rng(0)
    halves = [taught[:2], taught[2:]]
    made = [
        TrainSequence(
            rng.integers(0, 30, len(half) + 1),
            np.arange(len(half)) > 0,
            temperature=HEAT,
            per_token={
                "share": np.full(len(half), 1 / (len(half) - 1)),
                "teacher": np.zeros(len(half)),
                "teacher_states": half.numpy(),
            },
        )
        for half in halves
    ]
    (packed,) = pack(made, [range(2)])
    return packed


def test_a_teacher_that_is_the_student_teaches_nothing() -> None:
    states = torch.randn(5, 8, dtype=torch.float64).float().double().requires_grad_()
    packed = taught_batch(head(0), states.detach())
    loss, _ = ExactLoss({0: head(0).weight}, "reverse").of_states(states, head(0), packed)
    loss.backward()
    assert float(loss) == pytest.approx(0, abs=1e-12)
    assert states.grad is not None
    assert states.grad.abs().max() < 1e-9
    other, _ = ExactLoss({0: head(1).weight}, "reverse").of_states(states, head(0), packed)
    assert float(other) > 0.1


def test_top_ids_are_the_likeliest_and_never_padding() -> None:
    states, reader = torch.randn(5, 8, dtype=torch.float64), head(3)
    logits = states.float() @ reader.weight[:30].float().T
    assert torch.equal(top_ids(states, reader, 30).sort(1).values, torch.arange(30).expand(5, 30))
    assert torch.equal(top_ids(states, reader, 4), logits.topk(4).indices)
    with pytest.raises(UserError, match="topk: expected at most 30, the tokens that each rank holds; found 31"):
        top_ids(states, reader, 31)


# The pool.


def same_and_changed(models: dict[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    initialize_distributed(ParallelConfig(), seed=1)
    policy = trainer(models["student"], ParallelConfig(), 64)
    before = policy.log_probs(batch())
    loads: list[Path] = []
    load = pool.load_hf
    monkeypatch.setattr(pool, "load_hf", lambda module, path, **more: (loads.append(path), load(module, path, **more)))
    copy = shutil.copytree(models["code"], folder / "copy")
    shutil.copytree(models["code"], folder / "code")
    same = Teachers(policy, {"math": models["code"], "code": copy})
    told = [same.read(batch(), DOMAINS, read_logprob) for _ in range(2)]
    assert (len(same.teachers), len(loads)) == (1, 1)
    assert all((t["teacher"] == 0).all() for t in told[0])

    errors = []
    assert isinstance(same.seats[0], StudentsSeat)
    same.seats[0].weights.tensors[0] += 1e-3  # in memory, while it sleeps
    with pytest.raises(TeacherChanged) as error:
        same.read(batch(), DOMAINS, read_logprob)
    errors.append(str(error.value))
    two = Teachers(policy, {"math": models["student"], "code": folder / "code"})
    assert len(two.teachers) == 2
    two.read(batch(), DOMAINS, read_logprob)
    loads.clear()
    two.read(batch(), DOMAINS, read_logprob)
    assert len(loads) == 1  # the one that is there goes first
    weights = folder / "code/model.safetensors"
    changed = {name: 1.01 * tensor for name, tensor in load_file(weights).items()}
    save_file(changed, weights, metadata={"format": "pt"})
    with pytest.raises(TeacherChanged) as error:
        for domains in (["math"] * 5, ["code"] * 5):
            two.read(batch(), domains, read_logprob)
    errors.append(str(error.value))
    np.testing.assert_array_equal(np.concatenate(policy.log_probs(batch())), np.concatenate(before))
    return errors


def test_one_checkpoint_is_one_teacher_and_a_changed_one_is_refused(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory, on_disk = run_ranks(1, same_and_changed, models, tmp_path, monkeypatch)[0]
    assert "expected the log-probs of its probe to have the same bits as when" in in_memory
    assert on_disk.startswith(f"teacher {tmp_path / 'code'}: expected")
