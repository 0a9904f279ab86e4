import faulthandler
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests import gloo
from tests.gloo import RankFailed, run_ranks
from tests.living import runs
from tests.until import until


class Refused(ValueError):
    pass


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def all_reduce(values: list[float]) -> tuple[int, torch.Tensor]:
    dist.init_process_group("gloo")
    x = torch.tensor(values[dist.get_rank()], requires_grad=True)
    (3 * x).backward()
    total = x.detach() * x.grad
    dist.all_reduce(total)
    return dist.get_rank(), total


def test_ranks_form_a_group_and_results_come_in_rank_order():
    before = children()  # engines that other tests share
    torch.ones(4, requires_grad=True).sum().backward()  # autograd used before the fork
    results = run_ranks(3, all_reduce, [1.0, 2.0, 4.0])
    assert [rank for rank, _ in results] == [0, 1, 2]
    assert [float(total) for _, total in results] == [21.0] * 3
    assert children() <= before


def test_first_error_is_raised_with_its_type_and_traceback_while_others_wait():
    def fail_on_one() -> None:
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            raise Refused("heads 3 not divisible by 2")
        dist.barrier()

    before = children()
    with pytest.raises(Refused, match="heads 3") as caught:
        run_ranks(2, fail_on_one)
    assert "on rank 1 of 2" in caught.value.__notes__[0]
    assert "fail_on_one" in caught.value.__notes__[0]
    assert children() <= before


def test_a_rank_that_dies_is_named_with_its_exit_code():
    with pytest.raises(RankFailed, match="rank 1 exited with code 7"):
        run_ranks(2, lambda: os._exit(7) if os.environ["RANK"] == "1" else time.sleep(600))


def test_a_hang_ends_at_the_timeout_with_grandchildren_and_shows_stacks(tmp_path, capfd, monkeypatch):
    def hang() -> None:
        child = os.fork()
        if child:
            partial = tmp_path / f"{child}"
            partial.write_text(str(child))
            partial.rename(tmp_path / os.environ["RANK"])
        time.sleep(600)

    def wait(pending: list[Connection], timeout: float) -> list[Connection]:
        """The timeout comes when both ranks hang."""
        until(lambda: all((tmp_path / rank).exists() for rank in "01"))
        return []

    monkeypatch.setattr(gloo, "wait", wait)
    with pytest.raises(RankFailed, match=r"ranks \[0, 1\] gave no result within 3\.0 s"):
        run_ranks(2, hang, timeout_s=3.0)
    children = [int((tmp_path / rank).read_text()) for rank in "01"]
    until(lambda: not any(map(runs, children)))
    assert capfd.readouterr().err.count("in hang") >= 2


def test_a_pending_traceback_timer_of_the_parent_does_not_block_ranks():
    faulthandler.dump_traceback_later(600)
    try:
        assert run_ranks(1, lambda: 5) == [5]
    finally:
        faulthandler.cancel_dump_traceback_later()


def test_a_result_that_cannot_be_pickled_is_an_error():
    with pytest.raises((RankFailed, AttributeError, TypeError), match="pickle"):
        run_ranks(1, lambda: lambda: None)


def test_the_parents_environment_is_untouched():
    before = dict(os.environ)
    assert run_ranks(2, lambda: os.environ["LOCAL_RANK"]) == ["0", "1"]
    assert dict(os.environ) == before
