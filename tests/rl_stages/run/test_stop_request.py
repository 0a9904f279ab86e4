"""A signal to one rank stops all after the same step, which is saved."""

import os
import signal
from types import SimpleNamespace

import torch.distributed as dist

from cascade_rl.engine.backend.process_groups import join_ranks
from cascade_rl.rl_stages.run.stop_request import StopRequested
from cascade_rl.rl_stages.session import Session
from tests.gloo import run_ranks


def test_all_ranks_stop_after_the_step_in_which_one_is_asked() -> None:
    assert run_ranks(2, _take_steps) == [([0, 1, 2], [2, 3, "written"])] * 2


def _take_steps() -> tuple[list[int], list[object]]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    join_ranks()
    saved: list[object] = []
    writer = SimpleNamespace(poll=lambda: None, finish=lambda: saved.append("written"))
    stage = SimpleNamespace(steps=9, checkpoint_every=2)
    session = SimpleNamespace(
        first_step=0, stage=stage, checkpoints=writer, _save=saved.append, _ended=lambda step: step == stage.steps
    )
    taken = []
    try:
        for step in Session.steps(session):  # type: ignore[arg-type]
            taken.append(step)
            if step == 2 and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGUSR1)
    except StopRequested:
        return taken, saved
    raise AssertionError("expected a stop")
