import pytest
import torch

from cascade_rl.kernels.parts.compact_rows import compact_rows, restore_rows


def test_there_and_back_with_gradients():
    rows = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([1, 0, 0, 1, 1, 0, 1, 0, 0]).bool()
    assert torch.equal(compact_rows(rows, mask), rows[mask])
    assert torch.equal(restore_rows(compact_rows(rows, mask), mask), rows.where(mask[:, None], 0))
    assert torch.autograd.gradcheck(lambda x: compact_rows(x, mask), rows)
    assert torch.autograd.gradcheck(lambda x: restore_rows(x, mask), compact_rows(rows, mask).detach().requires_grad_())


def test_rows_that_do_not_count_may_be_anything():
    rows = torch.full((3, 2), torch.nan, requires_grad=True)
    compact_rows(rows, torch.zeros(3).bool()).sum().backward()
    assert torch.equal(rows.grad, torch.zeros(3, 2))


def test_no_rows():
    rows, mask = torch.zeros(0, 2, requires_grad=True), torch.zeros(0).bool()
    restored = restore_rows(compact_rows(rows, mask), mask)
    restored.sum().backward()
    assert restored.shape == rows.grad.shape == (0, 2)


def test_wrong_masks_are_named():
    with pytest.raises(ValueError, match=r"mask bool \[3\]"):
        compact_rows(torch.zeros(3, 2), torch.ones(3))
    with pytest.raises(ValueError, match="rows and mask on one device"):
        compact_rows(torch.zeros(3, 2), torch.ones(3, device="meta").bool())
    with pytest.raises(ValueError, match="with 3 true values"):
        restore_rows(torch.zeros(3, 2), torch.tensor([True, True, False]))
