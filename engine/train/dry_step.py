"""A training step of any rank of a layout of any size, on one CPU without its memory.

Everything of the step is the product's and Megatron's own, but for the fused kernels (fake_kernels.py) and the tensors,
which are fake and claim to be on a card (fake_card.py): the model, its DDP buffers, forward and backward of each
micro-batch, the collectives with ranks that are not there, the optimizer's step. torch's nodes of the backward pass
are called by python_autograd.py. A tensor of the host among those of the card, or two shapes that do not fit, are
errors as on a GPU.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
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
from cascade_rl.engine.train.python_autograd import PythonAutograd
from cascade_rl.engine.train.trainer import Trainer


@dataclass(frozen=True)
class DryStep:
    """One rank of a step: bytes on its card, and what backward left out.

    weights, gradients, optimizer  as in `StateBytes`
    forward                        what the forward pass that holds most has added when it ends
    peak                           the most that the step holds beside the three
    without_gradient               names of the trained parameters that backward did not reach
    """

    weights: int
    gradients: int
    optimizer: int
    forward: int
    peak: int
    without_gradient: tuple[str, ...]


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
    with ExitStack() as stack:
        stack.enter_context(imagined_rank(rank, world, parallel))
        card = stack.enter_context(imagined_card(architecture))
        autograd = PythonAutograd(lambda: after_forward.append(card.memory.held))
        stack.enter_context(autograd.installed())
        settings: dict[str, Any] = {"total_steps": 1, "token_budget": token_budget, "seed": 0, "router": router}
        with torch.device(CARD):
            trainer = _DryTrainer(hf, parallel, OptimizerConfig(), **settings)
        stack.enter_context(_stages_alike(trainer))
        before = card.memory.peak = card.memory.held
        trainer.update(sequences, loss, step=0)
        without = tuple(_without_gradient(trainer.module, autograd))
        return DryStep(*_state_bytes(trainer), max(after_forward) - before, card.memory.peak - before, without)


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
            (torch.nn.Module, "to", lambda module, _: module),
            (torch.UntypedStorage, "resize_", _counted_resize(card)),
        ):
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        for mode in (fake_kernels(architecture), FakeTensorMode(allow_non_fake_inputs=True), card, HostReads(card)):
            stack.enter_context(mode)
        yield card


def _counted_resize(card: FakeCard) -> Callable:
    resize = torch.UntypedStorage.resize_

    def counted(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        card.memory.resize(storage, size)
        return resize(storage, size)

    return counted


def _set(machine: Any, device: torch.device, overrides: dict[str, Any]) -> None:
    object.__setattr__(machine, "device", device)
    object.__setattr__(machine, "config_overrides", overrides)


def _without_gradient(module: torch.nn.Module, autograd: PythonAutograd) -> Iterator[str]:
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and id(parameter) not in autograd.reached:
            yield name


def _stages_alike(trainer: Trainer) -> AbstractContextManager:
    """The other stages of a pipeline have as many tokens as this one."""
    cut = trainer.parallel
    rows = trainer.token_budget // cut.context // (cut.tensor if cut.sequence else 1)
    shape = [rows, 1, trainer.config.hidden_size]
    return mock.patch.object(P2PCommunicator, "_communicate_shapes", lambda *_, **__: (shape, shape))


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
