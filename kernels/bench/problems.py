"""What is measured: random operands of an op at a shape, the exact result, the providers, and a bound on the time."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cascade_rl.kernels.bench.heads import heads, ours
from cascade_rl.kernels.bench.machine import Machine
from cascade_rl.kernels.fused_linear_kl import fused_linear_kl

SAMPLED_ROWS = 256
EXACT_WEIGHT_TOKENS = 8192  # a weight's gradient sums over all tokens: too many float64 products above this
PRODUCT_TOKENS = 8192
RERUN_TOKENS, RERUNS = 2048, 20


@dataclass(frozen=True)
class Shape:
    tokens: int
    hidden: int
    vocab: int

    def __str__(self) -> str:
        return f"{self.tokens} x {self.hidden} x {self.vocab}"


@dataclass(frozen=True)
class Bounds:
    """Largest error of a value, largest relative error of a gradient."""

    value: float
    gradient: float


OURS = Bounds(1e-4, 5e-3)
ROUNDED_LOGITS = Bounds(0.2, 0.2)  # loose enough for bfloat16 logits, which are timed all the same


@dataclass(frozen=True)
class Baseline:
    """What the machine can do, measured by one matrix product."""

    run: Callable[[], object]
    scale: float  # the op's size over the size of `run`
    work: float  # of the op's size, TFLOP
    forward: float  # products of the op's size that any forward needs
    both: float  # the same for forward and backward


@dataclass(frozen=True)
class Exact:
    """float64: values of the first SAMPLED_ROWS tokens; gradients of their rows, then of the other leaves in full."""

    values: Tensor
    gradients: list[Tensor]


@dataclass(frozen=True)
class Problem:
    op: str
    shape: Shape
    leaves: list[Tensor]  # tensors to differentiate by; the first has a row per token
    coefficients: Tensor  # [tokens] float32, the incoming gradient of each value
    exact: Exact
    providers: dict[str, Callable[[], Tensor]]  # each gives [tokens], differentiable by the leaves
    baseline: Baseline
    reruns: Callable[[], str] | None = None

    def forward(self, provider: str) -> Tensor:
        with torch.no_grad():
            return self.providers[provider]()

    def both(self, provider: str) -> tuple[Tensor, tuple[Tensor, ...]]:
        values = self.providers[provider]()
        return values.detach(), torch.autograd.grad(values, self.leaves, self.coefficients)

    def errors(self, provider: str) -> Bounds:
        values, gradients = self.both(provider)
        exact = self.exact
        rows = len(exact.values)
        found = [gradients[0][:rows], *gradients[1:]]
        relative = [
            float((gradient.double() - true).norm() / true.norm())
            for gradient, true in zip(found, exact.gradients, strict=False)
        ]
        return Bounds(float((values[:rows].double() - exact.values).abs().max()), max(relative))


def logprob(shape: Shape, machine: Machine) -> Problem:
    hidden, weight = _head(shape, machine)
    targets, coefficients = _targets(shape, machine)

    def exact(rows: slice, hidden: Tensor, weight: Tensor) -> Tensor:
        return torch.log_softmax(hidden @ weight.T, 1).gather(1, targets[rows, None])[:, 0]

    return Problem(
        "logprob",
        shape,
        [hidden, weight],
        coefficients,
        _exact(exact, [hidden, weight], coefficients),
        {name: partial(head, hidden, weight, targets) for name, head in heads(machine.gpu is not None).items()},
        _product(hidden, weight, forward=1, both=3),
        partial(_reruns, hidden, weight, targets, coefficients),
    )


def divergence(shape: Shape, machine: Machine) -> Problem:
    """Reverse KL of two models of the same size whose heads differ by a tenth."""
    student_hidden, student_weight = student = _head(shape, machine)
    teacher_hidden, teacher_weight = _head(shape, machine)
    with torch.no_grad():
        teacher_weight.add_(torch.randn_like(teacher_weight), alpha=0.3 / shape.hidden**0.5)
    teacher = (teacher_hidden.detach(), teacher_weight.detach())
    _, coefficients = _targets(shape, machine)

    def exact(rows: slice, hidden: Tensor, weight: Tensor) -> Tensor:
        return _reverse_kl(hidden @ weight.T, teacher[0][rows].double() @ teacher[1].double().T)

    return Problem(
        "reverse KL",
        shape,
        [student_hidden, student_weight],
        coefficients,
        _exact(exact, list(student), coefficients),
        {
            "ours": lambda: fused_linear_kl(*student, *teacher, kind="reverse", vocab_size=shape.vocab),
            "chunked torch": lambda: _chunked_kl(student, teacher),
        },
        _product(student_hidden, student_weight, forward=2, both=4),
    )


def _reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """From logits [rows, vocab]."""
    log_p, log_q = torch.log_softmax(student, 1), torch.log_softmax(teacher, 1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


def _chunked_kl(student: tuple[Tensor, Tensor], teacher: tuple[Tensor, Tensor], chunk_tokens: int = 1024) -> Tensor:
    """What distillation code usually does: logits per chunk of tokens, recomputed in backward; float32 softmax."""

    def chunk(hidden: Tensor, teacher_hidden: Tensor) -> Tensor:
        return _reverse_kl((hidden @ student[1].T).float(), (teacher_hidden @ teacher[1].T).float())

    pairs = zip(student[0].split(chunk_tokens), teacher[0].split(chunk_tokens), strict=True)
    return torch.cat([checkpoint(chunk, *pair, use_reentrant=False) for pair in pairs])


def _head(shape: Shape, machine: Machine) -> tuple[Tensor, Tensor]:
    """Hidden states and weight at the scale of a trained head: logits within about +-15."""
    generator = torch.Generator(machine.device).manual_seed(0)
    hidden = torch.empty(shape.tokens, shape.hidden, device=machine.device, dtype=torch.bfloat16)
    weight = torch.empty(shape.vocab, shape.hidden, device=machine.device, dtype=torch.bfloat16)
    hidden.normal_(generator=generator)
    weight.normal_(0, 3 / shape.hidden**0.5, generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_()


def _targets(shape: Shape, machine: Machine) -> tuple[Tensor, Tensor]:
    """Targets and coefficients, both [tokens]."""
    generator = torch.Generator(machine.device).manual_seed(1)
    targets = torch.randint(0, shape.vocab, (shape.tokens,), generator=generator, device=machine.device)
    return targets, torch.randn(shape.tokens, generator=generator, device=machine.device)


def _exact(answer: Callable[..., Tensor], leaves: list[Tensor], coefficients: Tensor) -> Exact:
    """`answer(rows, leaf[rows], *other leaves)` in float64, with its gradients."""
    further = [leaf.detach().double().requires_grad_() for leaf in leaves[1:]]
    sums = [torch.zeros_like(leaf) for leaf in further]
    found: Exact | None = None
    for start in range(0, len(coefficients), SAMPLED_ROWS):
        rows = slice(start, start + SAMPLED_ROWS)
        leaf = leaves[0][rows].detach().double().requires_grad_()
        values = answer(rows, leaf, *further)
        gradient, *parts = torch.autograd.grad(values, [leaf, *further], coefficients[rows].double())
        found = found or Exact(values.detach(), [gradient])
        if len(coefficients) > EXACT_WEIGHT_TOKENS:
            return found
        for total, part in zip(sums, parts, strict=True):
            total.add_(part)
    assert found is not None
    return Exact(found.values, [*found.gradients, *sums])


def _product(hidden: Tensor, weight: Tensor, *, forward: float, both: float) -> Baseline:
    """One product with the head, over the first tokens only, because the logits of all would not fit in memory."""
    first, columns = hidden.detach()[:PRODUCT_TOKENS], weight.detach().T
    work = 2e-12 * hidden.numel() * len(weight)
    return Baseline(lambda: first @ columns, len(hidden) / len(first), work, forward, both)


def _reruns(hidden: Tensor, weight: Tensor, targets: Tensor, coefficients: Tensor) -> str:
    """Says whether reruns of ours have the same bits, gradients included, and whether part of the batch does."""
    rows, head = hidden.detach()[:RERUN_TOKENS].requires_grad_(), weight.detach().requires_grad_()
    targets, coefficients = targets[: len(rows)], coefficients[: len(rows)]

    def once() -> list[Tensor]:
        values = ours(rows, head, targets)
        return [values.detach(), *torch.autograd.grad(values, [rows, head], coefficients)]

    first = once()
    same = sum(all(map(torch.equal, once(), first)) for _ in range(RERUNS))
    half = len(rows) // 2 - 1
    part = torch.equal(ours(rows[half:], head, targets[half:]), first[0][half:])
    return f"{same} of {RERUNS} reruns bitwise equal; a part of the batch {'equal' if part else 'NOT equal'}"
