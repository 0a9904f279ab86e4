"""The backward pass in Python gives torch's gradients, to the bit, and frees what torch frees."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cascade_rl.engine.train.fake_card import CARD, FakeCard
from cascade_rl.engine.train.python_autograd import PythonAutograd
from tests.engine.train.on_fake_card import on_fake_card

MIB = 1 << 20


class Two(torch.autograd.Function):
    """x w and exp(x w); the first argument is no tensor."""

    @staticmethod
    def forward(ctx: Any, undefined: bool, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        product = x * w
        ctx.save_for_backward(x, w, product)
        ctx.set_materialize_grads(not undefined)
        return product, product.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, one: Tensor, other: Tensor | None) -> tuple[Tensor | None, ...]:
        x, w, product = ctx.saved_tensors
        arriving = one if other is None else one + other * product.exp()
        return None, arriving * w, arriving * x


class Again(torch.autograd.Function):
    """x relu(x), computed again in backward, by a backward pass inside the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.relu()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor | None:
        leaf = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            result = leaf * leaf.relu()
        torch.autograd.backward(result, gradient)
        return leaf.grad


class ToHost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.empty(gradient.shape)


def broadcast(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return (x @ w + bias).float().log_softmax(-1)[:, :2].sum() + (w * w).mean()


def both_outputs(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    product, exponential = Two.apply(False, x @ w, bias.expand(5, 6))
    return (product.relu() * exponential).sum()


def one_output(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    rows = x @ w
    return Two.apply(True, rows, bias.expand(5, 6))[0].sum() + Two.apply(False, rows, rows)[1].sum()


def in_place_and_narrow(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    rows = x @ w
    rows[0] *= 2
    return (rows.to(torch.bfloat16) * bias.to(torch.bfloat16)).sum().float() + rows.pow(3).sum()


def computed_again(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return (Again.apply(x @ w) * bias).sum()


def hooked(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    seen: list[Tensor] = []

    class ByWhatWasSeen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * seen[0]

    rows = ByWhatWasSeen.apply(x) @ w
    rows.register_hook(lambda gradient: seen.append(gradient.sum()))
    rows.register_hook(lambda gradient: 3 * gradient)
    return (rows * bias).pow(2).sum()


def leaves() -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random).requires_grad_() for shape in ((5, 4), (4, 6), (6,))]


@pytest.mark.parametrize("loss", [broadcast, both_outputs, one_output, in_place_and_narrow, computed_again, hooked])
def test_gradients_are_those_of_torch(loss: Callable[..., Tensor]) -> None:
    ours, theirs, started = leaves(), leaves(), []
    loss(*theirs).backward()
    autograd = PythonAutograd(lambda: started.append(None))
    with autograd.installed():
        torch.autograd.backward(loss(*ours))
        torch.autograd.backward(loss(*ours))
    assert len(started) == 2  # not those inside
    for one, other in zip(ours, theirs, strict=True):
        assert other.grad is not None
        torch.testing.assert_close(one.grad, 2 * other.grad, rtol=0, atol=0)
        assert id(one) in autograd.reached


@on_fake_card
def test_what_a_node_kept_is_freed_when_it_has_run(card: FakeCard) -> None:
    """Each of the layers keeps its output. Backward holds one gradient more, or two while a node runs."""
    held: list[int] = []
    with PythonAutograd(lambda: held.append(card.memory.held)).installed():
        weight = torch.empty(MIB // 4, device=CARD, requires_grad=True)
        rows = weight * 1.0
        for _ in range(8):
            rows = rows.exp()
        loss = rows.sum()
        del rows
        card.memory.peak = 0
        torch.autograd.backward(loss)
    assert held[0] >= 9 * MIB
    assert card.memory.peak <= held[0] + 2 * MIB
    assert card.memory.held < 2 * MIB + 4096  # the weight and its gradient


@on_fake_card
def test_a_gradient_on_the_host_is_refused(card: FakeCard) -> None:
    with PythonAutograd(lambda: None).installed():
        loss = ToHost.apply(torch.empty(4, device=CARD, requires_grad=True)).sum()
        with pytest.raises(RuntimeError, match="expected a gradient on cuda:0, where its tensor is, found one on cpu"):
            torch.autograd.backward(loss)
