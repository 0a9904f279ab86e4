"""A worker's end of a meeting with the trainer's ranks: what they send it, and into which memory."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store

from cascade_rl.engine.cluster.store import get
from cascade_rl.engine.core.settings import Check
from cascade_rl.engine.refit.group import BASE, join_as_worker
from cascade_rl.engine.refit.transport import Destination, Receiver
from cascade_rl.engine.refit.vllm_map import WorkerPlace
from cascade_rl.engine.rollout.vllm_worker.adapted_layers import AdaptedLayers, Base, Factors


@dataclass
class Meeting:
    """Of weights, or of adapters.

    receiver  of weights, or of `factors`
    adapted   the layers that are made of a base and of factors; None: weights come whole
    factors   of the newest adapters
    base      until the weights under adapters have come, which is once in a meeting
    """

    device: torch.device
    receiver: Receiver
    adapted: AdaptedLayers | None = None
    factors: Factors | None = None
    base: Receiver | None = None

    @classmethod
    def join(
        cls,
        store: Store,
        rank: int,
        place: WorkerPlace,
        model: torch.nn.Module,
        loaded: Mapping[str, Tensor],
        device: torch.device,
    ) -> "Meeting":
        """`loaded` are the parameters of `model` in the shapes in which vLLM loads them."""
        terms = get(store, "terms")
        if not terms.lora:
            return cls(device, join_as_worker(store, rank, place, loaded, device))
        adapted = AdaptedLayers(model, loaded, terms, place, device)
        factors = adapted.factors()
        receiver = join_as_worker(store, rank, place, factors.tensors, device)
        base = join_as_worker(PrefixStore(BASE, store), rank, place, {**loaded, **adapted.base}, device)
        return cls(device, receiver, adapted, factors, base)

    @property
    def part(self) -> AdaptedLayers | None:
        """The layers that the next refit fills; None: all."""
        return None if self.base else self.adapted

    def copied(self, loaded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of the parameters that the next refit brings as they are, and are not made of factors."""
        if self.part:
            return {}
        made = self.adapted.base if self.adapted else {}
        return {name: tensor for name, tensor in loaded.items() if name not in made}

    def receive(self, version: int, check: Check, copied: Destination) -> None:
        """Fills `copied`, and the memory of base and factors. Raises RefitError."""
        if self.adapted and self.base:
            self.base.receive(version, Base(self.adapted.base, copied, self.device), check)
        self.receiver.receive(version, self.factors or copied, check)

    def make(self, layers: Destination) -> None:
        """Fills those that are made of factors, which have come."""
        if self.adapted and self.factors:
            self.adapted.make(self.factors.tensors, layers)
            self.base = None
