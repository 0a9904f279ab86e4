import pytest
import torch
from torch import Tensor

from cascade_rl.kernels.topk_kl import topk_kl
from tests.kernels.oracles import largest_error

TOKENS, VOCAB, K = 12, 40, 6


def distributions(scale: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    """Student and teacher log-probs [tokens, vocab] in float64, and the teacher's top ids."""
    student = torch.log_softmax(scale * torch.randn(TOKENS, VOCAB).double(), 1)
    teacher = torch.log_softmax(scale * torch.randn(TOKENS, VOCAB).double(), 1)
    return student, teacher, teacher.topk(K).indices


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL of two distributions given by log-probs."""
    return (p.exp() * (p - q)).sum(1)


def coarse(log_p: Tensor, ids: Tensor) -> Tensor:
    """[tokens, K + 1]: the ids, then all others as one."""
    others = log_p.scatter(1, ids, -torch.inf).logsumexp(1, keepdim=True)
    return torch.cat([log_p.gather(1, ids), others], 1)


@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_values_equal_those_of_the_coarser_distributions(kind: str):
    student, teacher, ids = distributions()
    p, q = coarse(student, ids), coarse(teacher, ids)
    found = topk_kl(student.gather(1, ids).float(), teacher.gather(1, ids).float(), kind=kind)
    assert found.dtype == torch.float32
    assert largest_error(found, kl(p, q) if kind == "reverse" else kl(q, p)) < 1e-5


@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_the_gradient_of_the_bucket_equals_finite_differences(kind: str):
    student, teacher, ids = distributions()
    s, t = student.gather(1, ids).requires_grad_(), teacher.gather(1, ids)
    assert torch.autograd.gradcheck(lambda x: topk_kl(x, t, kind=kind), s)


@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_bucket_lies_between_zero_and_the_exact_kl(kind: str):
    for scale in (0.5, 2.0, 5.0):
        student, teacher, ids = distributions(scale)
        exact = kl(student, teacher) if kind == "reverse" else kl(teacher, student)
        found = topk_kl(student.gather(1, ids), teacher.gather(1, ids), kind=kind)
        assert (found >= 0).all()
        assert (found <= exact + 1e-12).all()
    student, teacher, _ = distributions(0.5)
    exact = kl(student, teacher) if kind == "reverse" else kl(teacher, student)
    ids = torch.arange(VOCAB).expand(TOKENS, VOCAB)[:, :-1]
    everything = topk_kl(student.gather(1, ids), teacher.gather(1, ids), kind=kind)
    assert largest_error(everything, exact) < 1e-9


def test_the_bucket_keeps_the_kl_above_zero_and_its_gradient():
    """Here the two terms alone sum to less than 0. In verl#7856 the clamp left 89% of steps without a gradient."""
    student = torch.tensor([[0.6, 0.3]]).log().requires_grad_()
    teacher = torch.tensor([[0.5, 0.25]]).log()
    assert float((teacher.exp() * (teacher - student.detach())).sum()) < 0
    found = topk_kl(student, teacher, kind="forward")
    p, q = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.6, 0.3, 0.1]]).log()
    assert float(found.detach()) == pytest.approx(float(kl(p, q)))
    (gradient,) = torch.autograd.grad(found.sum(), student)
    assert gradient.tolist() == [pytest.approx([-0.5 + 0.25 * 0.6 / 0.1, -0.25 + 0.25 * 0.3 / 0.1])]


@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_tokens_with_fewer_ids(kind: str):
    student, teacher, ids = distributions()
    s, t = student.gather(1, ids).float(), teacher.gather(1, ids).float()
    t[:, 4:], s[:, 4:] = -torch.inf, torch.nan
    s.requires_grad_()
    found = topk_kl(s, t, kind=kind)
    shorter = topk_kl(s[:, :4], t[:, :4], kind=kind)
    assert torch.allclose(found, shorter, atol=1e-6)
    (gradient,) = torch.autograd.grad(found.sum(), s)
    assert gradient[:, :4].isfinite().all()
    assert not gradient[:, 4:].any()


@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_all_the_mass_on_the_ids_is_finite(kind: str):
    student = torch.tensor([[0.0, -40.0], [1e-7, -50.0]], requires_grad=True)  # rounding puts the sum above 1
    teacher = torch.tensor([[-0.5, -1.0], [0.0, -60.0]])
    found = topk_kl(student, teacher, kind=kind)
    (gradient,) = torch.autograd.grad(found.sum(), student)
    assert found.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_no_tokens(kind: str):
    student = torch.zeros(0, K, requires_grad=True)
    found = topk_kl(student, torch.zeros(0, K), kind=kind)
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
    ],
)
def test_wrong_arguments_are_named(change: dict, message: str):
    arguments = {"student_logprob": torch.zeros(3, 4), "teacher_logprob": torch.zeros(3, 4)}
    with pytest.raises(ValueError, match=message):
        topk_kl(**(arguments | {"kind": "reverse"} | change))
