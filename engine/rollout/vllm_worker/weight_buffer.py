"""Memory beside the layers for the weights of a refit, so that an engine decodes while they arrive."""

from collections.abc import KeysView, Mapping

import torch

from cascade_rl.engine.backend.wire import settle
from cascade_rl.engine.refit.transport import Destination


class WeightBuffer:
    """A `Destination` that no decode step reads: a worker's weights once more, shaped as `loaded`, as vLLM loads them.

    What no slice fills, which is padding, stays zero."""

    def __init__(self, loaded: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self._tensors = {
            name: torch.zeros(tensor.shape, dtype=tensor.dtype, device=device) for name, tensor in loaded.items()
        }
        settle(device)  # weights arrive on another stream, which does not wait for these zeros

    @property
    def names(self) -> KeysView[str]:
        return self._tensors.keys()

    def tensor(self, parameter: str) -> torch.Tensor:
        """See `Destination`."""
        return self._tensors[parameter]

    def filled(self, parameter: str) -> None:
        """See `Destination`. The layers wait until all have arrived."""

    def pour(self, layers: Destination) -> None:
        """Copies all weights into the layers, as a refit in place would bring them there. They are copied, not lent: a
        kernel may keep a tensor that it was loaded from, and the next weights would reach it here."""
        for name, tensor in self._tensors.items():
            layers.tensor(name).copy_(tensor)
            layers.filled(name)
