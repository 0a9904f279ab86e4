"""Router replay: the experts that the sampler chose are the experts that the trainer uses (R3).

Without it, training and sampling disagree on some expert for most tokens, and 3 of 3 baseline 30B-A3B GRPO
runs collapsed (Megatron-LM#4168). Each router holds one `Replay` in place of Megatron's RouterReplay. Megatron's
own keeps its routers in one process-wide list, which mixes the policy with a reference or a teacher, and it
cannot tell whether a target was used (prime-rl#2738). The router still computes the weights of the replayed
experts itself and gets their gradient.

Routes belong to a micro-batch, not to a router: when Megatron computes a layer again in the backward pass, forward
passes of other micro-batches lie between. What is computed again therefore runs with the routes of its first time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cascade_rl.moe.router import expert_layer, routers

NOT_CAPTURED = -1


@dataclass(frozen=True)
class Routes:
    """The captured experts of one micro-batch.

    chosen    int64 [tokens of this rank, moe_layers, topk]; a row of NOT_CAPTURED lets the router choose
    replayed  int64 [moe_layers], rows that each layer has replayed. A layer that is computed again writes it again
    """

    chosen: Tensor
    replayed: Tensor


_present: ContextVar[Routes | None] = ContextVar("routes of the micro-batch that is computed", default=None)


@contextmanager
def _with(routes: Routes | None) -> Iterator[None]:
    token = _present.set(routes)
    try:
        yield
    finally:
        _present.reset(token)


def _checkpoint(function: Callable[..., Any], distribute_saved_activations: bool, *args: Any) -> Any:
    """Megatron's own, of whatever part of a model: `function` runs now and again in the backward pass."""
    from megatron.core.tensor_parallel.random import checkpoint  # here: not every user of this module has routers

    routes = _present.get()

    def computed(*inputs: Any) -> Any:
        with _with(routes):
            return function(*inputs)

    return checkpoint(computed, distribute_saved_activations, *args)


class Replay:
    """The router of one expert layer."""

    def __init__(self, layer: int) -> None:
        self.layer = layer

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Callable[..., tuple[Tensor, Tensor]] = torch.topk,
    ) -> tuple[Tensor, Tensor]:
        """Called by Megatron's top-k routing: scores [tokens, experts] -> values, indices [tokens, topk]."""
        values, indices = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
        routes = _present.get()
        if routes is None:
            return values, indices
        target = routes.chosen[:, self.layer]
        if target.shape != indices.shape:
            raise ValueError(f"expected routes of shape {tuple(indices.shape)}, found {tuple(target.shape)}")
        captured = (target != NOT_CAPTURED).all(-1, keepdim=True)  # [tokens, 1]
        indices = torch.where(captured, target, indices)
        routes.replayed[self.layer] = captured.sum()
        return scores.gather(1, indices), indices


class RouterReplay:
    """The routers of one model (or of one pipeline stage of it)."""

    def __init__(self, model: torch.nn.Module, pattern: str) -> None:
        """`pattern` is the layer pattern of the whole model. Its n-th E is layer n of the captured routes."""
        from megatron.core import tensor_parallel

        tensor_parallel.checkpoint = _checkpoint  # all of Megatron looks it up there when it is called
        self.replays = [Replay(expert_layer(router, pattern)) for router in routers(model)]
        for router, replay in zip(routers(model), self.replays, strict=True):
            router.router_replay = replay
        self._replayed: list[Tensor] = []  # of each forward pass

    @contextmanager
    def of(self, chosen: Tensor | None) -> Iterator[None]:
        """In the block, and where a part of it is computed again, routers use the experts of the rows `chosen`.

        chosen: int64 [tokens of this rank, moe_layers, topk], or None to let every router choose.
        """
        if chosen is None or not self.replays:
            yield
            return
        routes = Routes(chosen, chosen.new_zeros(chosen.size(1)))
        self._replayed.append(routes.replayed)
        with _with(routes):
            yield

    def start_counting(self) -> None:
        self._replayed = []

    def replayed_rows(self) -> int:
        """Number of (token, layer) choices replayed since `start_counting`, each counted once."""
        return int(torch.stack(self._replayed).sum()) if self._replayed else 0
