"""A worker's layers with low-rank adapters, made again of a base in host memory and of the factors that a refit brings.

vLLM's own LoRA computes W0 x + B (A x) beside the layer. That rounds otherwise than the trainer's weights, and it has
no adapters for Mamba's projections, for latent attention or for experts on CPUs. Weights that are merged here are the
trainer's, for every family that can be refitted.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from vllm.model_executor.layers.attention import is_deferred_attention_layer

from cascade_rl.engine.backend.wire import at_rest
from cascade_rl.engine.lora.merge import merged
from cascade_rl.engine.refit.factors import WorkerAdapter, worker_adapters
from cascade_rl.engine.refit.group import Terms
from cascade_rl.engine.refit.transport import Destination
from cascade_rl.engine.refit.vllm_map import WorkerPlace


class AdaptedLayers:
    """Those of `model` that hold a weight with an adapter, whole: a layer is reloaded with all its parameters.

    loaded  the model's parameters in the shapes in which vLLM loads them
    base    parameters of the layers as they are without adapters, by name, in host memory; weights with adapters in the
            trainer's dtype
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loaded: Mapping[str, Tensor],
        terms: Terms,
        place: WorkerPlace,
        device: torch.device,
    ) -> None:
        assert terms.lora
        self._scale, self._device = terms.lora.scale, device
        self._adapters = defaultdict[str, list[WorkerAdapter]](list)
        for adapter in worker_adapters(terms.hf, terms.lora, place):
            self._adapters[adapter.parameter].append(adapter)
        layers = {_layer_of(name) for name in self._adapters}
        trained = getattr(torch, terms.parallel.precision)
        self.base = {
            name: at_rest(tensor.shape, trained if name in self._adapters else tensor.dtype, device)
            for name, tensor in loaded.items()
            if _layer_of(name) in layers
        }
        self._layers = [model.get_submodule(name) for name in layers]
        self._layers += [layer for layer in model.modules() if is_deferred_attention_layer(layer)]

    def modules(self) -> Iterator[torch.nn.Module]:
        """All that vLLM's reload asks of what it reloads. Latent attention follows, which has copies of weights."""
        return iter(self._layers)

    def factors(self) -> "Factors":
        """Memory for the factors of this worker."""
        adapters = (adapter for found in self._adapters.values() for adapter in found)
        shards = (shard for adapter in adapters for shard in (adapter.a, adapter.b))
        return Factors({shard.name: torch.empty(shard.shape, device=self._device) for shard in shards})

    @torch.no_grad()
    def make(self, factors: Mapping[str, Tensor], destination: Destination) -> None:
        """Fills `destination` with the layers of the base and `factors`."""
        for name, base in self.base.items():
            target = destination.tensor(name)
            if name not in self._adapters:
                target.copy_(base)
            for adapter in self._adapters.get(name, ()):
                a, b = factors[adapter.a.name], factors[adapter.b.name]
                for index, rows in adapter.pieces:
                    own = base[index].to(target.device).flatten(end_dim=-2)
                    target[index] = merged(own, b[rows], a, self._scale).to(target.dtype)
            destination.filled(name)


class Factors:
    """The `Destination` of a refit of factors."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def tensor(self, parameter: str) -> Tensor:
        return self.tensors[parameter]

    def filled(self, parameter: str) -> None: ...


class Base:
    """The `Destination` of the weights under adapters: those of adapted layers are `kept`, the others `loaded`."""

    def __init__(self, kept: Mapping[str, Tensor], loaded: Destination, device: torch.device) -> None:
        self._kept, self._loaded, self._device = kept, loaded, device
        self._coming: dict[str, Tensor] = {}

    def tensor(self, parameter: str) -> Tensor:
        if parameter not in self._kept:
            return self._loaded.tensor(parameter)
        if parameter not in self._coming:
            self._coming[parameter] = torch.empty_like(self._kept[parameter], device=self._device)
        return self._coming[parameter]

    def filled(self, parameter: str) -> None:
        if parameter in self._kept:
            self._kept[parameter].copy_(self._coming.pop(parameter))
        else:
            self._loaded.filled(parameter)


def _layer_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]
