"""Swapping moves values, not storages, and is undone also where the block raises. Lent memory is there in it only."""

from types import SimpleNamespace

import pytest
import torch

from cascade_rl.engine.train.reference import Lent, Reference


@pytest.mark.parametrize("on_host", [False, True])
def test_values_change_places_and_storages_stay(on_host: bool) -> None:
    module = torch.nn.BatchNorm1d(3)  # parameters and buffers
    reference = Reference(SimpleNamespace(module=module), on_host=on_host)  # type: ignore[arg-type]
    kept = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for tensor in module.state_dict().values():
        tensor += 1
    pointers = [tensor.data_ptr() for tensor in module.state_dict().values()]

    def holds(offset: int) -> bool:
        state = module.state_dict()
        same_place = [tensor.data_ptr() for tensor in state.values()] == pointers
        return same_place and all(torch.equal(state[name], kept[name] + offset) for name in kept)

    for _ in range(2):
        assert holds(1)
        with pytest.raises(KeyError), reference.in_place():
            assert holds(0)
            raise KeyError
    assert holds(1)


def test_lent_weights_have_memory_in_the_block_only() -> None:
    """Buffers, which a checkpoint may lack, keep theirs. Tied weights have one memory."""
    module = torch.nn.ModuleList([torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3, bias=False)])
    module[0].bias = module[0].weight
    module[0].running_mean.fill_(2)
    lent = Lent(SimpleNamespace(module=module))  # type: ignore[arg-type]

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
