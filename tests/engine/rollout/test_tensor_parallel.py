"""An engine of two workers answers as one of one worker does, and leaves nothing behind when it is killed."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.rollout.client import EngineDied
from tests.living import runs
from tests.until import until

from .conftest import CONFIG, Tiny, kept_sets, make_requests
from .test_engine_lifecycle import LONG, replace_under_way

TOLERANCE = 1e-5
NUCLEUS = Sampling(max_new_tokens=24, top_p=0.9, top_k=20)
# All kinds of layers, and a tied head: its packed copy has to be refreshed in the workers.
CUT = ("nemotron_h", "qwen3")


@pytest.fixture(scope="module")
def twos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Tiny]]:
    config = replace(CONFIG, tensor=2)
    tinies = {family: Tiny(family, tmp_path_factory.mktemp(family), config) for family in CUT}
    yield tinies
    for tiny in tinies.values():
        tiny.engine.close()


@pytest.mark.parametrize("family", CUT)
def test_two_workers_answer_as_one(family: str, engines: dict[str, Tiny], twos: dict[str, Tiny]) -> None:
    """Before and after an update: tokens, log-probs and the chosen experts, each position's once."""
    greedy, sampled = Sampling(max_new_tokens=24, temperature=0.0), Sampling(max_new_tokens=24)
    requests = make_requests(6, greedy) + make_requests(6, sampled, seed=1) + make_requests(6, NUCLEUS, seed=2)
    for index in (0, 1):
        one, two = engines[family], twos[family]
        one.load(index), two.load(index)
        expected, found = one.sample(requests), two.sample(requests)
        for request in requests:
            ours, theirs = found[request.id], expected[request.id]
            assert ours.token_ids.tolist() == theirs.token_ids.tolist()
            assert np.abs(ours.logprobs - theirs.logprobs).max() < TOLERANCE
            assert (ours.kept is None) == (request.sampling is not NUCLEUS)
            if ours.kept:
                assert kept_sets(ours) == kept_sets(theirs)
            if family == "nemotron_h":
                assert np.array_equal(ours.routes, theirs.routes)
        sequences = [np.arange(3, 60), np.arange(100, 104)]
        for ours, theirs in zip(two.engine.score(sequences), one.engine.score(sequences), strict=True):
            assert np.abs(ours.logprobs - theirs.logprobs).max() < TOLERANCE


def test_experts_are_recorded_once_across_a_preemption(twos: dict[str, Tiny]) -> None:
    """An update in flight recomputes all caches; the rows of what was computed before stay as they were."""
    tiny = twos["nemotron_h"]
    tiny.load(0)
    [request] = make_requests(1, LONG)
    before = tiny.sample([request])[request.id]
    [after] = replace_under_way(tiny, [request])
    switch = after.versions[1][1]
    known = len(request.prompt_ids) + switch - 1
    assert len(after.routes) == len(request.prompt_ids) + 199
    assert np.array_equal(after.routes[:known], before.routes[:known])


def test_workers_end_with_a_server_that_is_killed(twos: dict[str, Tiny]) -> None:
    """SIGKILL to the server alone, as the kernel does it when the trainer dies, or when memory is short."""
    engine = twos["nemotron_h"].engine
    engine.health()
    server = psutil.Process(engine.pids[0])
    family = [server, *server.children(recursive=True)]
    assert sum("Worker_TP" in " ".join(process.cmdline()) for process in family) == 2
    segments = {path for process in family for path in shared_memory(process)}
    assert segments
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not any(runs(process.pid) for process in family[1:]))
    until(lambda: not any(path.exists() for path in segments))
    with pytest.raises(EngineDied):
        engine.health()


def shared_memory(process: psutil.Process) -> set[Path]:
    """Files under /dev/shm that a process has mapped, also those that are unlinked already."""
    maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    names = [line[line.index("/dev/shm/") :].removesuffix(" (deleted)") for line in maps if "/dev/shm/" in line]
    return set(map(Path, names))


def test_an_engine_ends_with_its_worker(twos: dict[str, Tiny]) -> None:
    tiny = twos["qwen3"]
    tiny.load(0)
    tiny.engine.submit(make_requests(2, LONG))
    server = psutil.Process(tiny.engine.pids[0])
    family = [server, *server.children(recursive=True)]
    worker = next(process for process in family if "Worker_TP1" in " ".join(process.cmdline()))
    worker.kill()
    with pytest.raises(EngineDied, match="exit code 1"):
        list(tiny.engine.results())
    assert not any(runs(process.pid) for process in family)
