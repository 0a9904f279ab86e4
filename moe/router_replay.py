"""Router replay: the experts that the sampler chose are the experts that the trainer uses (R3).

Without it, training and sampling disagree on some expert for most tokens, and 3 of 3 baseline 30B-A3B GRPO
runs collapsed (Megatron-LM#4168). Each router holds one `Replay` in place of Megatron's RouterReplay. Megatron's
own keeps its routers in one process-wide list, which mixes the policy with a reference or a teacher, and it
cannot tell whether a target was used (prime-rl#2738). The router still computes the weights of the replayed
experts itself and gets their gradient.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from cascade_rl.moe.router import expert_layer, routers

NOT_CAPTURED = -1


class Replay:
    """One router's choices. `target` is [tokens, topk]; a row of NOT_CAPTURED lets the router choose."""

    def __init__(self, device: torch.device) -> None:
        self.target: Tensor | None = None
        self.replayed_rows = torch.zeros((), dtype=torch.int64, device=device)

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
        if self.target is None:
            return values, indices
        if self.target.shape != indices.shape:
            raise ValueError(f"expected routes of shape {tuple(indices.shape)}, found {tuple(self.target.shape)}")
        captured = (self.target != NOT_CAPTURED).all(-1, keepdim=True)  # [tokens, 1]
        indices = torch.where(captured, self.target, indices)
        self.replayed_rows += captured.sum()
        return scores.gather(1, indices), indices


class RouterReplay:
    """The routers of one model (or of one pipeline stage of it)."""

    def __init__(self, model: torch.nn.Module, pattern: str, device: torch.device) -> None:
        """`pattern` is the layer pattern of the whole model. Its n-th E is layer n of the captured routes."""
        self.replays: list[tuple[int, Replay]] = []
        for router in routers(model):
            router.router_replay = Replay(device)
            self.replays.append((expert_layer(router, pattern), router.router_replay))

    def set_target(self, routes: Tensor | None) -> None:
        """routes [tokens of this rank, moe_layers, topk] int64, or None to let every router choose."""
        for layer, replay in self.replays:
            replay.target = None if routes is None else routes[:, layer]

    def take_replayed_rows(self) -> int:
        """Number of (token, layer) choices replayed since the last call."""
        if not self.replays:
            return 0
        rows = torch.stack([replay.replayed_rows for _, replay in self.replays])
        for _, replay in self.replays:
            replay.replayed_rows.zero_()
        return int(rows.sum())
