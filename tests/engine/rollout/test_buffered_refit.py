"""A real vLLM engine samples while new weights arrive in a buffer, and holds the same bytes afterwards as in place."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import PrefixStore, TCPStore

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import family_of, read_config
from cascade_rl.engine.models.places import place_of
from cascade_rl.engine.refit.group import Terms, join_as_trainer
from cascade_rl.engine.refit.transport import Header
from cascade_rl.engine.rollout.server_process import OFFLINE, SAFE_PATH
from cascade_rl.launchers.local.held_port import held_port
from tests.engine.refit.refit_layouts import laid_out
from tests.gloo import run_ranks
from tests.until import LIMIT_S

from .buffered_refit import MEETING, SAMPLED, Told
from .tiny_models import Reference, build, hub_state, write_config

# test_vllm_refit.py has weights that arrive in a buffer in each run of the tests, without samples beside them
pytestmark = pytest.mark.long

CASES = [
    ("nemotron_h", ParallelConfig(tensor=2, expert=2, sequence=True), 1, 2e-3),
    ("qwen3_moe", ParallelConfig(pipeline=2), 2, 1e-4),
    ("deepseek_v3", ParallelConfig(tensor=2, expert=2, sequence=True), 1, 1e-4),
]
TRAINERS = 2
CHECKS = ["sums", "digests", "none", "sums"]
MODELS = [1, 2, 1, 2]  # by their seeds
KEPT = list[TCPStore]()  # a rank may still ask when rank 0, whose store it is, has returned
SEQUENCES = [list(range(3, 60)), list(range(100, 130, 2))]


def send(folder: Path, parallel: ParallelConfig, workers: int, port: int, states: list[dict[str, np.ndarray]]) -> int:
    """A trainer rank that has the weights of one model after the other; returns the bytes it put on a wire.

    Those of the last model stop half-way until the engine has sampled."""
    rank, hf = int(os.environ["RANK"]), read_config(folder)
    store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    KEPT.append(store)
    shards = family_of(hf).name_map(hf).shards(place_of(rank, TRAINERS, parallel))
    tensors = {shard.name: torch.zeros(shard.shape) for shard in shards}
    terms = Terms(hf, parallel, TRAINERS, workers, bucket_bytes=100_000, seconds=600.0)
    sender = join_as_trainer(PrefixStore(MEETING, store), rank, terms, tensors, torch.device("cpu"))
    for version, (state, check) in enumerate(zip(states, CHECKS, strict=True)):
        for shard in shards:
            tensors[shard.name].copy_(torch.from_numpy(laid_out(shard.shape, shard.blocks, state)))
        if version == len(CHECKS) - 1:
            assert len(sender._rounds) > 2  # two are in flight
            sender._start = partial(when_sampled, sender._start, store)  # type: ignore[method-assign]
        sender.send(version, check)
    return sender.group.sent["payload"]


def when_sampled(start: Callable[..., Any], store: TCPStore, header: Header, *how: Any) -> Any:
    if header.number == 2:  # the first is in the buffer
        store.wait([SAMPLED])
    return start(header, *how)


@pytest.fixture
def port() -> Iterator[int]:
    """Of the store where trainers and engine meet."""
    with held_port() as port:
        yield port


@pytest.mark.parametrize(("family", "parallel", "tensor", "tolerance"), CASES)
def test_an_engine_samples_while_its_next_weights_arrive(
    family: str, parallel: ParallelConfig, tensor: int, tolerance: float, port: int, tmp_path: Path
) -> None:
    folder = write_config(family, tmp_path / "model")
    models = [build(family, seed) for seed in MODELS]
    states = [{name: value.numpy() for name, value in hub_state(model).items()} for model in models]
    job = {"model": str(folder), "tensor": tensor, "port": port, "first_rank": TRAINERS, "checks": CHECKS}
    (tmp_path / "job.json").write_text(json.dumps(job | {"sequences": SEQUENCES, "out": f"{tmp_path / 'told'}"}))
    program = Path(__file__).with_name("buffered_refit.py")
    environment = SAFE_PATH | OFFLINE | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    with (tmp_path / "log").open("w") as log:
        engine = subprocess.Popen([sys.executable, program, tmp_path / "job.json"], env=environment, stderr=log)
    try:
        sent = run_ranks(TRAINERS, send, folder, parallel, tensor, port, states)
        assert engine.wait(LIMIT_S) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        engine.kill()
    assert sum(sent) == 0  # one host: through shared memory
    told = Told(**pickle.loads((tmp_path / "told").read_bytes()))
    for model, scores in zip(models, told.scores, strict=True):
        reference = Reference(model)
        for ids, scored in zip(SEQUENCES, scores, strict=True):
            expected = reference(np.array(ids), routes=scored.routes)[np.arange(len(ids) - 1), ids[1:]]
            assert np.abs(expected - scored.logprobs).max() < tolerance
    require_undisturbed(told)
    require_as_in_place(told)


def require_undisturbed(told: Told) -> None:
    """While weights arrive, the engine samples the bits that it sampled before: no step has seen a part of them."""
    for before, meanwhile in zip(told.before, told.meanwhile, strict=True):
        assert meanwhile.versions == before.versions == ((2, 0),)
        assert meanwhile.token_ids.tolist() == before.token_ids.tolist()
        assert meanwhile.logprobs.tobytes() == before.logprobs.tobytes()
    ((old, _), (new, switch)) = told.across[0].versions
    assert (old, new) == (2, 3)
    assert 5 < switch < 40


def require_as_in_place(told: Told) -> None:
    """Each worker, in all its tensors and in what it computes with those that kernels keep for themselves."""
    assert told.layers[0] == told.layers[2] != told.layers[1] == told.layers[3]
    for in_place, buffered in zip(told.scores[1], told.scores[3], strict=True):
        assert buffered.logprobs.tobytes() == in_place.logprobs.tobytes()
