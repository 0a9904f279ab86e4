"""A weight has the same bits however it is cut, and those of float64 but for the last."""

from itertools import product

import pytest
import torch

from cascade_rl.engine.lora.merge import merged

OUTPUTS, INPUTS, SCALE = 133, 257, 32 / 3


def drawn(rank: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Base, B and A, whose entries differ by many orders of magnitude; a row and a column are 0."""
    generator = torch.Generator().manual_seed(rank)
    b, a = (
        torch.randn(shape, generator=generator) * 10 ** torch.empty(shape).uniform_(-6, 1, generator=generator)
        for shape in ((OUTPUTS, rank), (rank, INPUTS))
    )
    b[7], a[:, 9], a[0, :3] = 0, 0, 1e-44
    return torch.randn(OUTPUTS, INPUTS, generator=generator).to(dtype), b, a


@pytest.mark.parametrize(("rank", "dtype"), product((1, 5, 64, 512), (torch.float32, torch.bfloat16)))
def test_every_cut_has_the_bits_of_the_whole(rank: int, dtype: torch.dtype) -> None:
    base, b, a = drawn(rank, dtype)
    whole = merged(base, b, a, SCALE)
    cuts = [slice(0, 1), slice(1, 8), slice(8, 129), slice(129, None)]
    for rows, columns in product(cuts, cuts):
        assert torch.equal(merged(base[rows, columns], b[rows], a[:, columns], SCALE), whole[rows, columns])
    shuffled = torch.randperm(rank)
    assert torch.equal(merged(base, b[:, shuffled], a[shuffled], SCALE), whole)


@pytest.mark.parametrize("rank", [1, 5, 64, 512])
def test_it_is_the_product_to_float32(rank: int) -> None:
    base, b, a = drawn(rank, torch.float32)
    exact = base.double() + SCALE * (b.double() @ a.double())
    room = SCALE * b.double().abs().amax(1, keepdim=True) * a.double().abs().amax(0) * rank * 2**-20
    assert ((merged(base, b, a, SCALE).double() - exact).abs() <= room + exact.abs() * 2**-24).all()
    assert torch.equal(merged(base, torch.zeros_like(b), a, SCALE), base)
