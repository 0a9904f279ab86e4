"""Moves the trainer's weights into the engines, and proves that they arrived.

Trainer ranks and workers meet once and plan which rank sends which slice to which worker (`engine/refit/plan.py`).
Every refit carries out this plan (`engine/refit/transport.py`). Then a probe compares both sides' log-probs on fixed
sequences: otherwise an engine that kept an old cache, or packed new weights wrongly, looks healthy (NeMo-RL#4018,
miles#1958).
"""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from cascade_rl.engine.backend.machine import backend
from cascade_rl.engine.backend.ranks import from_all, from_rank0
from cascade_rl.engine.core.settings import Check, RolloutConfig
from cascade_rl.engine.refit.group import BASE, Terms, join_as_trainer
from cascade_rl.engine.refit.transport import Sender
from cascade_rl.engine.rollout.engine import Engine
from cascade_rl.engine.rollout.protocol import JoinRefit, Stall
from cascade_rl.engine.sync.gap import Gap
from cascade_rl.engine.sync.probe import Probe, probe
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.moe.churn import routing_churn


class StaleWeights(RuntimeError):
    """After a refit, the engine's log-probs of the probe sequences are not the trainer's."""


class Refit:
    """One trainer and its engines; `engine` is None on all ranks but 0. All methods are collective.

    probe_ids  sequences of token ids to compare; engine i of n scores every n-th, beginning with number i
    config     the number of workers, how often checksums are compared, and the bounds of the probe
    moved      {"routing_churn": share of the probe's experts that are others than before the newest weights}; empty
               without routes, and before a second comparison
    stalls     of the newest weights, one for each engine that they were sent to; on rank 0
    bytes      that all ranks together send in a refit, without checks and without the base of adapters
    """

    def __init__(
        self, trainer: Trainer, engine: Engine | None, probe_ids: Sequence[Sequence[int]], config: RolloutConfig
    ) -> None:
        self.trainer, self.engine = trainer, engine
        self.probe_ids, self.config = probe_ids, config
        self.version = -1
        self.moved: dict[str, float] = {}
        self.stalls: list[Stall] = []
        self.bytes = 0
        self._routes: Sequence[np.ndarray] = ()
        self._address, self._port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store = TCPStore(self._address, self._port, is_master=False, wait_for_workers=False)
        self._meetings = 0
        self._joined: dict[int, int] = {}
        self._base: Sender | None = None

    def __call__(self, version: int) -> float:
        """Returns the probe's largest gap. Raises StaleWeights as `require_fresh`, RefitError as `send`."""
        gap = self.compare(version).gap
        self.require_fresh(gap)
        return gap.max

    def compare(self, version: int) -> Probe:
        """Sends the weights to the engines, and lets both sides score the probe. Raises RefitError as `send`."""
        self.version = version
        self.send()
        found = probe(self.trainer, self.engine, self.probe_ids)
        self.moved = {"routing_churn": routing_churn(self._routes, found.routes)} if self._routes else {}
        self._routes = found.routes
        return found

    @property
    def exact(self) -> bool:
        """Whether both sides compute in float32."""
        return self.trainer.parallel.precision == self.config.dtype == "float32"

    def require_fresh(self, gap: Gap) -> None:
        """Raises StaleWeights unless `gap`, the probe's, is within `probe_bound` and `probe_mean_bound`."""
        (name, worst), config = gap.worst(self.exact), self.config
        if not (worst <= config.probe_bound and gap.mean <= config.probe_mean_bound):
            raise StaleWeights(
                f"after the refit to weight version {self.version} trainer and engine differ by {worst:.2e} "
                f"({name}) and {gap.mean:.2e} (mean) on the probe sequences, expected at most {config.probe_bound:.0e} "
                f"(rollout.probe_bound) and {config.probe_mean_bound:.0e} (rollout.probe_mean_bound): the engine does "
                "not sample from the weights that were sent"
            )

    def send(self) -> None:
        """Sends the newest weights to the engines that lack them: all of them, or those that were restarted.

        Raises RefitError if a weight is stale, missing or corrupt; it names the weight.
        """
        engines = from_rank0(lambda: self.engine.lacking(self.version) if self.engine else {})
        if not engines:  # one without weights of its own, such as a test's
            return
        if engines != self._joined:
            self._join(engines)
        check = self._check()
        with (
            self.engine.receiving(engines, self.version, check)
            if self.engine
            else nullcontext(list[Stall]()) as self.stalls
        ):
            self._send_base(check)
            self._sender.send(self.version, check)

    def _send_base(self, check: Check) -> None:
        """To engines that have just joined, if adapters alone follow."""
        if self._base and self.trainer.lora:
            with self.trainer.lora.base.in_place():
                self._base.send(self.version, check)
            self._base = None

    def _check(self) -> Check:
        every = self.config.checksum_every
        return self.config.checksum if every and (self._base or self.version % every == 0) else "none"

    def _join(self, engines: dict[int, int]) -> None:
        """All trainer ranks meet the workers of `engines` (index: process id). The previous meeting is over."""
        trainers, workers = dist.get_world_size(), self.config.tensor
        meeting = f"refit {self._meetings}"
        places = {
            index: JoinRefit(self._address, self._port, meeting, trainers + number * workers)
            for number, index in enumerate(engines)
        }
        terms = Terms(self.trainer.hf_config, self.trainer.parallel, trainers, len(engines) * workers)
        tensors, lora = self.trainer.module.state_dict(), self.trainer.lora
        store, rank, device = PrefixStore(meeting, self._store), dist.get_rank(), backend().device
        with self.engine.joining(places) if self.engine else nullcontext():
            if lora and self.config.refit == "adapters":
                factors = {shard.name: factor.data for shard, factor in lora.factors()}
                self._sender = join_as_trainer(store, rank, replace(terms, lora=lora.config), factors, device)
                self._base = join_as_trainer(PrefixStore(BASE, store), rank, terms, tensors, device)
            else:
                self._sender = join_as_trainer(store, rank, terms, tensors, device)
        self.bytes = sum(from_all(self._sender.bytes))
        self._joined, self._meetings = engines, self._meetings + 1
