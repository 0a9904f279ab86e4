"""Planned refits of a real vLLM engine: what it computes afterwards is what transformers makes of the same weights."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import PrefixStore, TCPStore

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import family_of, read_config
from cascade_rl.engine.models.places import place_of
from cascade_rl.engine.refit.group import Terms, join_as_trainer
from cascade_rl.engine.rollout.server_process import OFFLINE, SAFE_PATH
from cascade_rl.launchers.local.held_port import held_port
from tests.engine.refit.refit_layouts import laid_out
from tests.gloo import run_ranks

from .tiny_models import Reference, build, hub_state, write_config

CASES = [
    ("nemotron_h", ParallelConfig(tensor=2, expert=2, sequence=True), 1, 2e-3),
    pytest.param("qwen3_moe", ParallelConfig(pipeline=2), 2, 1e-4, marks=pytest.mark.long),
    pytest.param("qwen3_next", ParallelConfig(tensor=2, expert=2, sequence=True), 2, 1e-4, marks=pytest.mark.long),
    pytest.param("qwen3", ParallelConfig(), 1, 1e-4, marks=pytest.mark.long),
    pytest.param("qwen2", ParallelConfig(tensor=2), 1, 1e-4, marks=pytest.mark.long),
    pytest.param("deepseek_v3", ParallelConfig(tensor=2, expert=2, sequence=True), 1, 1e-4, marks=pytest.mark.long),
    pytest.param("glm4_moe", ParallelConfig(tensor=2, expert=2, sequence=True), 2, 1e-4, marks=pytest.mark.long),
]
TRAINERS = 2
CHECKS = ["sums", "digests", "none"]
KEPT = list[TCPStore]()  # a rank may still ask when rank 0, whose store it is, has returned
SEQUENCES = [list(range(3, 60)), list(range(100, 130, 2))]


def send(folder: Path, parallel: ParallelConfig, workers: int, port: int, states: list[dict[str, np.ndarray]]) -> int:
    """A trainer rank that has the weights of one model after the other; returns the bytes it put on a wire."""
    rank, hf = int(os.environ["RANK"]), read_config(folder)
    store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    KEPT.append(store)
    shards = family_of(hf).name_map(hf).shards(place_of(rank, TRAINERS, parallel))
    tensors = {shard.name: torch.zeros(shard.shape) for shard in shards}
    terms = Terms(hf, parallel, TRAINERS, workers, bucket_bytes=100_000, seconds=100.0)
    sender = join_as_trainer(PrefixStore("first", store), rank, terms, tensors, torch.device("cpu"))
    for version, (state, check) in enumerate(zip(states, CHECKS, strict=True)):
        for shard in shards:
            tensors[shard.name].copy_(torch.from_numpy(laid_out(shard.shape, shard.blocks, state)))
        sender.send(version, check)
    return sender.group.sent["payload"]


@pytest.fixture
def port() -> Iterator[int]:
    """Of the store where trainers and engine meet."""
    with held_port() as port:
        yield port


@pytest.mark.parametrize(("family", "parallel", "tensor", "tolerance"), CASES)
def test_the_engine_computes_with_what_the_trainer_sent(
    family: str, parallel: ParallelConfig, tensor: int, tolerance: float, port: int, tmp_path: Path
) -> None:
    folder = write_config(family, tmp_path / "model")
    models = [build(family, seed) for seed in (1, 2, 1)]
    states = [{name: value.numpy() for name, value in hub_state(model).items()} for model in models]
    job = {"model": str(folder), "tensor": tensor, "port": port, "first_rank": TRAINERS, "checks": CHECKS}
    (tmp_path / "job.json").write_text(json.dumps(job | {"sequences": SEQUENCES, "out": f"{tmp_path / 'scores'}"}))
    program = Path(__file__).with_name("vllm_refit.py")
    environment = SAFE_PATH | OFFLINE | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    with (tmp_path / "log").open("w") as log:
        engine = subprocess.Popen([sys.executable, program, tmp_path / "job.json"], env=environment, stderr=log)
    try:
        sent = run_ranks(TRAINERS, send, folder, parallel, tensor, port, states)
        assert engine.wait(60) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        engine.kill()
    assert sum(sent) == 0  # one host: through shared memory
    for model, scores in zip(models, pickle.loads((tmp_path / "scores").read_bytes()), strict=True):
        reference = Reference(model)
        for ids, scored in zip(SEQUENCES, scores, strict=True):
            expected = reference(np.array(ids), routes=scored.routes)[np.arange(len(ids) - 1), ids[1:]]
            assert np.abs(expected - scored.logprobs).max() < tolerance
