import pytest
import torch
from torch import Tensor

from cascade_rl.kernels.topk_kl import topk_kl
from tests.kernels.oracles import gradients, largest_error, relative_error

TOKENS, VOCAB, K = 12, 40, 6


def distributions(scale: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    """Student and teacher log-probs [tokens, vocab] in float64, and the teacher's top ids."""
    student = torch.log_softmax(scale * torch.randn(TOKENS, VOCAB).double(), 1)
    teacher = torch.log_softmax(scale * torch.randn(TOKENS, VOCAB).double(), 1)
    return student, teacher, teacher.topk(K).indices


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Of distributions given by log-probs."""
    return (p.exp() * (p - q)).sum(1)


def coarse(log_p: Tensor, ids: Tensor) -> Tensor:
    """[tokens, K + 1]: the ids and all others as one."""
    others = log_p.scatter(1, ids, -torch.inf).logsumexp(1, keepdim=True)
    return torch.cat([log_p.gather(1, ids), others], 1)


def oracle(student: Tensor, teacher: Tensor, ids: Tensor, kind: str, tail: str) -> Tensor:
    if tail == "bucket":
        p, q = coarse(student, ids), coarse(teacher, ids)
    else:
        p, q = student.gather(1, ids), teacher.gather(1, ids)
    if tail == "renormalize":
        p, q = p.log_softmax(1), q.log_softmax(1)
    return kl(p, q) if kind == "reverse" else kl(q, p)


@pytest.mark.parametrize("tail", ["bucket", "drop", "renormalize"])
@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_values_and_gradients_equal_the_whole_distribution(kind: str, tail: str):
    student, teacher, ids = distributions()
    student.requires_grad_()
    expected = oracle(student, teacher, ids, kind, tail)
    (wanted,) = gradients([expected], [student])
    found = topk_kl(student.gather(1, ids).float(), teacher.gather(1, ids).float(), kind=kind, tail=tail)
    assert found.dtype == torch.float32
    assert largest_error(found, expected) < 1e-5
    if tail != "bucket":  # whose gradient by the ids' log-probs contains that of 1 - sum p
        (gradient,) = gradients([found], [student])
        assert relative_error(gradient, wanted) < 1e-5


@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_the_gradient_of_the_bucket_equals_finite_differences(kind: str):
    student, teacher, ids = distributions()
    s, t = student.gather(1, ids).requires_grad_(), teacher.gather(1, ids)
    assert torch.autograd.gradcheck(lambda x: topk_kl(x, t, kind=kind, tail="bucket"), s)


@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_bucket_lies_between_zero_and_the_exact_kl(kind: str):
    for scale in (0.5, 2.0, 5.0):
        student, teacher, ids = distributions(scale)
        exact = kl(student, teacher) if kind == "reverse" else kl(teacher, student)
        found = topk_kl(student.gather(1, ids), teacher.gather(1, ids), kind=kind, tail="bucket")
        assert (found >= 0).all()
        assert (found <= exact + 1e-12).all()
    student, teacher, _ = distributions(0.5)
    exact = kl(student, teacher) if kind == "reverse" else kl(teacher, student)
    ids = torch.arange(VOCAB).expand(TOKENS, VOCAB)[:, :-1]
    everything = topk_kl(student.gather(1, ids), teacher.gather(1, ids), kind=kind, tail="bucket")
    assert largest_error(everything, exact) < 1e-9


def test_dropped_tails_are_negative_and_keep_their_gradient():
    """verl#7856: a top-k sum is no KL; clamped at 0, 89% of steps had no gradient."""
    student = torch.tensor([[0.6, 0.3]]).log().requires_grad_()
    teacher = torch.tensor([[0.5, 0.25]]).log()
    found = topk_kl(student, teacher, kind="forward", tail="drop")
    assert float(found.detach()) < 0
    (gradient,) = torch.autograd.grad(found.sum(), student)
    assert gradient.tolist() == [pytest.approx([-0.5, -0.25])]
    assert float(topk_kl(student, teacher, kind="forward", tail="bucket").detach()) > 0


@pytest.mark.parametrize("tail", ["bucket", "drop", "renormalize"])
@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_tokens_with_fewer_ids(kind: str, tail: str):
    student, teacher, ids = distributions()
    s, t = student.gather(1, ids).float(), teacher.gather(1, ids).float()
    t[:, 4:], s[:, 4:] = -torch.inf, torch.nan
    s.requires_grad_()
    found = topk_kl(s, t, kind=kind, tail=tail)
    shorter = topk_kl(s[:, :4], t[:, :4], kind=kind, tail=tail)
    assert torch.allclose(found, shorter, atol=1e-6)
    (gradient,) = torch.autograd.grad(found.sum(), s)
    assert gradient[:, :4].isfinite().all()
    assert not gradient[:, 4:].any()


@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_all_the_mass_on_the_ids_is_finite(kind: str):
    student = torch.tensor([[0.0, -40.0], [1e-7, -50.0]], requires_grad=True)  # rounded above 1
    teacher = torch.tensor([[-0.5, -1.0], [0.0, -60.0]])
    found = topk_kl(student, teacher, kind=kind, tail="bucket")
    (gradient,) = torch.autograd.grad(found.sum(), student)
    assert found.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("tail", ["bucket", "drop", "renormalize"])
@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_no_tokens(kind: str, tail: str):
    student = torch.zeros(0, K, requires_grad=True)
    found = topk_kl(student, torch.zeros(0, K), kind=kind, tail=tail)
    found.sum().backward()
    assert found.shape == (0,)
    assert student.grad.shape == (0, K)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"teacher_logprob": torch.zeros(3, 4, device="meta")}, "student and teacher on one device"),
        ({"student_logprob": torch.zeros(3, 5)}, "tokens, K"),
        ({"student_logprob": torch.zeros(3, 4).bfloat16(), "teacher_logprob": torch.zeros(3, 4).bfloat16()}, "float32"),
        ({"kind": "jsd"}, "kind must be one of"),
        ({"tail": "clamp"}, "tail must be one of"),
    ],
)
def test_wrong_arguments_are_named(change: dict, message: str):
    arguments = {"student_logprob": torch.zeros(3, 4), "teacher_logprob": torch.zeros(3, 4)}
    with pytest.raises(ValueError, match=message):
        topk_kl(**(arguments | {"kind": "reverse", "tail": "bucket"} | change))
