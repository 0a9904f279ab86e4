"""Tests on fake tensors that claim to be on a card, each in a process of its own.

Once a process without CUDA has entered FakeTensorMode, torch counts 64 cards in it. The next backward pass starts a
thread for each, and no process that is forked afterwards can run one.
"""

from collections.abc import Callable
from unittest import mock

from torch._subclasses.fake_tensor import FakeTensorMode

from cascade_rl.engine.backend.cpu_shim import CudaToCpu
from cascade_rl.engine.train.fake_card import FakeCard, HostReads
from tests.gloo import run_ranks


def on_fake_card(test: Callable[[FakeCard], None]) -> Callable[[], None]:
    def in_own_process() -> None:
        run_ranks(1, _with_card, test)

    in_own_process.__module__, in_own_process.__doc__ = test.__module__, test.__doc__
    return in_own_process


def _with_card(test: Callable[[FakeCard], None]) -> None:
    card = FakeCard()
    # A test before may have left the shim in the process that was forked, which makes cards the CPU.
    with (
        mock.patch.object(
            CudaToCpu, "__torch_function__", lambda _, func, types, args=(), kwargs=None: func(*args, **(kwargs or {}))
        ),
        FakeTensorMode(allow_non_fake_inputs=True),
        card,
        HostReads(card),
    ):
        test(card)
