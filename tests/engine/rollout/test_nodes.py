"""Engines on two nodes."""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from cascade_rl.engine.backend.process_groups import initialize_distributed, join_ranks
from cascade_rl.engine.cluster.node import NodeLost
from cascade_rl.engine.cluster.rank_environment import ENGINE_NODES
from cascade_rl.engine.cluster.store import put
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig
from cascade_rl.engine.rollout import nodes
from cascade_rl.engine.rollout.client import EngineDied, RolloutEngine
from cascade_rl.engine.rollout.nodes import keep_node, nodes_of_job
from cascade_rl.engine.sync.sampler import Batch, sample
from cascade_rl.engine.sync.weight_sync import Refit
from cascade_rl.engine.train.trainer import Trainer
from tests.gloo import run_ranks
from tests.living import runs
from tests.two_nodes import HEAD, be_first_of_a_node
from tests.until import until

from .conftest import CONFIG, Tiny, make_requests
from .tiny_models import build, write_config, write_image

PAIR = replace(CONFIG, engines=2)


@dataclass
class Drawn:
    """By one of the nodes' ranks."""

    host: str
    pid: int
    parents: list[int]
    samples: list[list[Rollout]]
    deaths: list[tuple[int | None, str, int]]  # exit code, log, number of pending samples
    payload: int


def draw_twice(folder: Path, requests: list[Request]) -> Drawn:
    """The second time, node 1's engine is killed when the first sample is there."""
    rank = be_first_of_a_node()
    initialize_distributed(ParallelConfig(), seed=1)
    deaths, samples = list[EngineDied](), list[list[Rollout]]()
    with nodes_of_job(PAIR.engines) as found:
        engine = RolloutEngine(folder, PAIR, 0, folder / "engine.log", found) if rank == 0 else None
        parents = [psutil.Process(pid).ppid() for pid in engine.pids] if engine else []
        hf = json.loads((folder / "config.json").read_text())
        trainer = Trainer(hf, ParallelConfig(), OptimizerConfig(), total_steps=1, token_budget=256, seed=1)
        trainer.load_hf(folder)
        refit = Refit(trainer, engine, [list(range(5, 30)), list(range(90, 101))], PAIR)
        refit(0)
        victims = [-1, engine.pids[1]] if engine else [-1, -1]
        for victim in victims:
            batch = Batch(engine, requests, lambda _, v=victim: kill(v)) if engine else None
            samples.append(sample(batch, refit))
            deaths += batch.deaths if batch else []
        if engine:
            engine.close()
        dist.barrier()
    told = [(death.exit_code, death.log_path.name, len(death.pending_ids)) for death in deaths]
    return Drawn(socket.gethostname(), os.getpid(), parents, samples, told, refit._sender.group.sent["payload"])


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        if pid > 0:
            os.kill(pid, signal.SIGKILL)


def test_two_nodes_draw_what_one_engine_draws_also_when_one_of_theirs_is_killed(
    engines: dict[str, Tiny], tmp_path: Path
) -> None:
    tiny = engines["llama"]
    tiny.load(0)
    first, *others = make_requests(16, Sampling(max_new_tokens=200))
    requests = [replace(first, sampling=Sampling(max_new_tokens=2)), *others]  # long before any other
    expected = tiny.sample(requests)
    folder = write_config("llama", tmp_path)
    write_image(build("llama", 1), folder / "model.safetensors")

    first, second = run_ranks(2, draw_twice, folder, requests)
    assert first.parents == [first.pid, second.pid]
    ((code, log, pending),) = first.deaths
    assert (code, log) == (-signal.SIGKILL, "engine-1.log")
    assert pending
    assert second.samples == [[], []]
    for rollouts in first.samples:
        assert [rollout.id for rollout in rollouts] == [request.id for request in requests]
        for rollout in rollouts:
            assert rollout.token_ids.tolist() == expected[rollout.id].token_ids.tolist()
            assert np.abs(rollout.logprobs - expected[rollout.id].logprobs).max() < 1e-5
            assert rollout.versions == ((0, 0),)
    assert first.payload + second.payload == 0  # data parallel ranks: each engine gets all from its own node


@dataclass
class Ended:
    """Threads that still keep engines where another node's first rank was killed, and the errors that rank 0 got."""

    left: list[str]
    errors: list[str]


def survive(victim: int, kept: bool, folder: Path) -> Ended:
    """The victim is a process between: its parent stays, so that nothing else ends the other rank.

    kept  the second node has no rank: its first process keeps it
    """
    rank = be_first_of_a_node()
    if rank == victim and (child := os.fork()):
        os.waitpid(child, 0)
        return Ended([], [])
    if kept:
        os.environ |= {"WORLD_SIZE": "1", ENGINE_NODES: "1"}
    if kept and rank == 1:
        keep_node(0, HEAD, int(os.environ["MASTER_PORT"]))
        return Ended([], [])
    if rank != victim:
        return beside_a_victim(rank, kept, folder)
    with started(rank, folder):
        os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def beside_a_victim(rank: int, kept: bool, folder: Path) -> Ended:
    with started(rank, folder) as engine:
        if engine and kept:
            (keeper,) = {psutil.Process(pid).ppid() for pid in engine.pids}
            os.kill(keeper, signal.SIGKILL)
        if engine is None:
            (obeying,) = [thread for thread in threading.enumerate() if thread.name == "engines"]
            obeying.join(60)
            return Ended([obeying.name] if obeying.is_alive() else [], [])
        errors = [error_of(engine.health), error_of(engine.restart)]
        engine.close()
        return Ended([], errors)


@contextmanager
def started(rank: int, folder: Path) -> Iterator[RolloutEngine | None]:
    """Both ranks know that the engines have begun to start; rank 0 writes down their process ids."""
    join_ranks()
    with nodes_of_job(PAIR.engines) as found:
        engine = RolloutEngine(folder, PAIR, 0, folder / "engine.log", found) if rank == 0 else None
        if engine:
            (folder / "pids").write_text(json.dumps(engine.pids))
        dist.barrier()
        yield engine


def error_of(action: Callable[[], object]) -> str:
    with pytest.raises((EngineDied, NodeLost)) as error:
        action()
    return f"{error.type.__name__}: {error.value}"


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("victim", [0, 1])
def test_no_engine_outlives_the_first_process_of_its_node_or_rank_0(victim: int, kept: bool, tmp_path: Path) -> None:
    folder = write_config("llama", tmp_path)
    ended = run_ranks(2, survive, victim, kept, folder)[1 - victim]
    assert ended.left == []
    until(lambda: not any(map(runs, json.loads((folder / "pids").read_text()))))  # the victim's own die with it
    if victim == 1:
        assert ended.errors[0].startswith("EngineDied: ")
        assert ended.errors[1].startswith(f"NodeLost: {'keeper 0' if kept else 'rank 1'}, the first of node")


def test_a_keeper_ends_with_a_job_that_fails_before_it_asks_for_anything(capfd: pytest.CaptureFixture[str]) -> None:
    store = TCPStore(HEAD, 0, is_master=True, wait_for_workers=False)
    keeper = threading.Thread(target=keep_node, args=(0, HEAD, store.port))
    keeper.start()
    PrefixStore("nodes", store).wait(["keeper 0"])
    del store
    keeper.join()
    assert "keeper 0: rank 0 ended before it asked for anything" in capfd.readouterr().out


def test_a_node_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "START_LIMIT", timedelta(milliseconds=100))
    store = TCPStore(HEAD, 0, is_master=True, wait_for_workers=False)
    put(store, "keeper 0", "here")
    with pytest.raises(NodeLost, match=r"of each of the 2 nodes .* found no keeper 1: see what the job's log says"):
        nodes._arrived(store, 2)


def refuse(engines: int) -> None:
    be_first_of_a_node()
    join_ranks()
    with nodes_of_job(engines):
        pass


def test_engines_that_do_not_divide_over_the_nodes_are_refused() -> None:
    with pytest.raises(UserError, match=r"rollout\.engines: expected a multiple of 2, .* found 3"):
        run_ranks(2, refuse, 3)


def be_elsewhere() -> None:
    be_first_of_a_node()
    join_ranks()
    os.environ["MASTER_ADDR"] = "192.0.2.1"  # nobody's
    with nodes_of_job(2):
        pass


def test_an_address_that_is_not_rank_0s_is_told() -> None:
    with pytest.raises(UserError, match=r"MASTER_ADDR: expected an address of rank 0's node, found 192\.0\.2\.1"):
        run_ranks(2, be_elsewhere)
