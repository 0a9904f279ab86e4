"""A training step of any rank of a layout of any size, on one CPU without its memory.

Everything of the step is the product's and Megatron's own, but for the fused kernels (fake_kernels.py) and the tensors,
which are fake and claim to be on a card (fake_card.py): the model, its DDP buffers, the forward pass over each
micro-batch, the collectives with ranks that are not there, the optimizer's step. A tensor of the host among those of
the card, or two shapes that do not fit, are errors as on a GPU.

It ends before the backward pass: torch's autograd engine asks the CUDA driver for the context of the device, of which
there is none. So the memory of a step is read after a forward pass, where it is largest but for what backward adds.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core.models.hybrid.hybrid_model import HybridModel
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from cascade_rl.engine.backend import cpu_shim, process_groups
from cascade_rl.engine.backend.machine import backend
from cascade_rl.engine.backend.replicas import Replicas
from cascade_rl.engine.core.settings import DEFAULT_ROUTER, OptimizerConfig, ParallelConfig, RouterConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models.dry_run import imagined_rank
from cascade_rl.engine.models.hf_config import HfConfig
from cascade_rl.engine.train import trainer as trainer_module
from cascade_rl.engine.train.fake_card import CARD, FakeCard, HostReads
from cascade_rl.engine.train.fake_kernels import fake_kernels
from cascade_rl.engine.train.losses import Loss, StatesLoss
from cascade_rl.engine.train.packing import MicroBatch
from cascade_rl.engine.train.trainer import Trainer


@dataclass(frozen=True)
class DryStep:
    """Bytes on the card of one rank.

    weights, gradients, optimizer  as in `StateBytes`
    forward                        what the forward pass that holds most has added when it ends
    """

    weights: int
    gradients: int
    optimizer: int
    forward: int


class _DryTrainer(Trainer):
    """The host's part of a step works on real tensors."""

    def local_batches(self, sequences: Sequence[TrainSequence]) -> list[MicroBatch]:
        with _disable_current_modes():
            return super().local_batches(sequences)

    def _held(self, batches: list[MicroBatch]) -> list[MicroBatch]:
        with _disable_current_modes():
            return super()._held(batches)


def dry_step(
    hf: HfConfig,
    parallel: ParallelConfig,
    sequences: Sequence[TrainSequence],
    loss: Loss | StatesLoss,
    *,
    rank: int,
    world: int,
    token_budget: int,
    architecture: str,
    router: RouterConfig = DEFAULT_ROUTER,
) -> DryStep:
    """The step of rank `rank` of `world` on the global batch `sequences`. This process must have no process group.

    `architecture`: a GPU of kernels/runtime/configs.py, such as sm90.
    """
    after_forward: list[int] = []
    with imagined_rank(rank, world, parallel), imagined_card(architecture) as card:
        settings: dict[str, Any] = {"total_steps": 1, "token_budget": token_budget, "seed": 0, "router": router}
        with torch.device(CARD):
            trainer = _DryTrainer(hf, parallel, OptimizerConfig(), **settings)

        def instead_of_backward(*_: Any, **__: Any) -> None:
            after_forward.append(_held(card))

        before = _held(card)
        with mock.patch.object(torch.autograd, "backward", instead_of_backward):
            trainer.update(sequences, loss, step=0)
        return DryStep(*_state_bytes(trainer), max(after_forward) - before)


@contextmanager
def imagined_card(architecture: str) -> Iterator[FakeCard]:
    """Tensors that are asked to be on a card are there. Other ranks hold what this one holds."""
    machine, shim, card = backend(), cpu_shim._mode, FakeCard()
    was = machine.device, machine.config_overrides
    overrides = {name: value for name, value in machine.config_overrides.items() if name != "use_cpu_initialization"}
    assert shim is not None, "on a machine with CUDA, measure"
    shim.__exit__(None, None, None)
    _set(machine, CARD, overrides)
    with ExitStack() as stack:
        stack.callback(shim.__enter__)
        stack.callback(_set, machine, *was)
        for owner, name, stand_in in (
            (torch.cuda, "current_device", lambda: CARD),
            (process_groups, "_control", dist.group.WORLD),
            (dist, "all_gather_object", _gathered_alike),
            (trainer_module, "is_rank0", lambda: True),
            (trainer_module, "from_rank0", lambda produce: produce()),
            (Replicas, "scatter", lambda replicas, produce: produce()[replicas.own]),
            (trainer_module, "_sum_over_batch", lambda _: {}),  # other ranks report the metrics
            # Megatron has built the model on the card; a move there would lose what marks its parameters.
            (HybridModel, "to", lambda module, _: module),
        ):
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        for mode in (fake_kernels(architecture), FakeTensorMode(allow_non_fake_inputs=True), card, HostReads(card)):
            stack.enter_context(mode)
        yield card


def _set(machine: Any, device: torch.device, overrides: dict[str, Any]) -> None:
    object.__setattr__(machine, "device", device)
    object.__setattr__(machine, "config_overrides", overrides)


def _held(card: FakeCard) -> int:
    gc.collect()  # a graph without a backward pass has cycles
    return card.memory.held


def _gathered_alike(gathered: list[Any], mine: Any, group: Any = None) -> None:
    gathered[:] = [mine] * len(gathered)


def _state_bytes(trainer: Trainer) -> tuple[int, int, int]:
    """Weights, gradients and the optimizer's state."""
    buffers = [buffer for ddp in trainer.ddp for buffer in (*ddp.buffers, *ddp.expert_parallel_buffers)]
    parts = trainer.optimizer.chained_optimizers
    states = [tensor for part in parts for state in part.optimizer.state.values() for tensor in state.values()]
    masters = [tensor for part in parts for group in part.shard_fp32_from_float16_groups for tensor in group]
    return (
        sum(parameter.nbytes for parameter in trainer.module.parameters()),
        sum(buffer.grad_data.nbytes for buffer in buffers),
        sum(tensor.nbytes for tensor in (*states, *masters) if tensor is not None and tensor.dim()),
    )
