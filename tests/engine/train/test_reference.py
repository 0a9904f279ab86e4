"""Swapping moves values, not storages, and is undone also where the block raises."""

from types import SimpleNamespace

import pytest
import torch

from cascade_rl.engine.train.reference import Reference


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
