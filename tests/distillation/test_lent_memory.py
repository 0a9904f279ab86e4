"""Lent memory is there in a block only, also where the block raises."""

import pytest
import torch

from cascade_rl.distillation.lent_memory import LentMemory
from tests.gloo import run_ranks


def test_lent_weights_have_memory_in_the_block_only() -> None:
    """Buffers, which a checkpoint may lack, keep theirs. Tied weights have one memory."""
    run_ranks(1, lend)  # `backend()` changes the process in which it is called first


def lend() -> None:
    module = torch.nn.ModuleList([torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3, bias=False)])
    module[0].bias = module[0].weight
    module[0].running_mean.fill_(2)
    lent = LentMemory(module)

    def held() -> int:
        return sum(parameter.untyped_storage().nbytes() for parameter in module.parameters())

    for value in (1.0, 3.0):
        assert held() == 0
        with pytest.raises(KeyError), lent.in_place():
            for parameter in module.parameters():
                parameter.data.fill_(value)
            assert held() == 4 * (3 + 9)
            assert module[1](torch.ones(1, 3)).tolist() == [[3 * value] * 3]
            raise KeyError
    assert held() == 0
    assert module[0].running_mean.tolist() == [2, 2, 2]
