"""A real vLLM engine, a program of its own, that trainer ranks refit: on one host, with the weights of tiny models."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import TCPStore
from transformers import PreTrainedModel

from cascade_rl.engine.core.rollouts import Scored
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models.name_map import NameMap
from cascade_rl.engine.models.places import place_of
from cascade_rl.engine.rollout.server_process import OFFLINE, SAFE_PATH
from tests.engine.refit.refit_layouts import laid_out
from tests.gloo import run_ranks
from tests.until import LIMIT_S

from .tiny_models import Reference, hub_state

TRAINERS = 2
SEQUENCES = [list(range(3, 60)), list(range(100, 130, 2))]
KEPT = list[TCPStore]()  # a rank may still ask when rank 0, whose store it is, has returned
State = dict[str, np.ndarray]  # a whole model's tensors, or all factors of its adapters


class Held:
    """What a trainer rank holds of `name_map`: nothing yet."""

    def __init__(self, name_map: NameMap, rank: int, parallel: ParallelConfig) -> None:
        self.shards = name_map.shards(place_of(rank, TRAINERS, parallel))
        self.tensors = {shard.name: torch.zeros(shard.shape) for shard in self.shards}

    def become(self, state: State) -> None:
        for shard in self.shards:
            self.tensors[shard.name].copy_(torch.from_numpy(laid_out(shard.shape, shard.blocks, state)))


def state_of(model: PreTrainedModel) -> State:
    return {name: value.numpy() for name, value in hub_state(model).items()}


def joined_store(rank: int, port: int) -> TCPStore:
    """Where trainers and engine meet, which is rank 0's."""
    store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    KEPT.append(store)
    return store


def refitted[T](
    program: str, job: Mapping[str, Any], folder: Path, send: Callable[..., T], *arguments: Any
) -> tuple[list[T], Any]:
    """What `send(*arguments)` returned on each trainer rank, and what the program in this folder has told.

    job  of the program, without what all have
    """
    shared = {"first_rank": TRAINERS, "sequences": SEQUENCES, "out": str(folder / "told")}
    (folder / "job.json").write_text(json.dumps({**job, **shared}))
    environment = SAFE_PATH | OFFLINE | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    command = [sys.executable, Path(__file__).with_name(program), folder / "job.json"]
    with (folder / "log").open("w") as log:
        engine = subprocess.Popen(command, env=environment, stderr=log)
    try:
        sent = run_ranks(TRAINERS, send, *arguments)
        assert engine.wait(LIMIT_S) == 0, (folder / "log").read_text()[-3000:]
    finally:
        engine.kill()
    return sent, pickle.loads((folder / "told").read_bytes())


def require_model(model: PreTrainedModel, scores: Sequence[Scored], tolerance: float) -> None:
    """The engine has scored SEQUENCES as transformers does with this model."""
    reference = Reference(model)
    for ids, scored in zip(SEQUENCES, scores, strict=True):
        expected = reference(np.array(ids), routes=scored.routes)[np.arange(len(ids) - 1), ids[1:]]
        assert np.abs(expected - scored.logprobs).max() < tolerance
