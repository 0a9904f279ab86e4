"""Run as a program: a vLLM engine that is refitted by trainer ranks elsewhere, and scores after each refit. The last
refit is buffered: the trainers hold its third round until this program has sampled.

    python buffered_refit.py JOB

JOB is a JSON file: {"model": folder, "tensor": n, "port": of the store, "first_rank": n, "checks": [...],
"sequences": [...], "out": file}. The fields of a `Told` are pickled to `out`.
"""

import hashlib
import json
import os
import pickle
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling, Scored
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout import server
from cascade_rl.engine.rollout.protocol import BufferWeights, JoinRefit, ReceiveWeights, Settings, Submit
from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches

MEETING, SAMPLED = "first", "sampled"  # name of the meeting, and key of the store for which the trainers wait


@dataclass
class Told:
    """scores, layers   after each refit: what it scored, and a digest of all tensors of each worker's layers
    before, meanwhile   the same requests, sampled before the weights of the last refit came and when a part had come
    across              a sample that those weights reached
    """

    scores: list[list[Scored]] = field(default_factory=list)
    layers: list[list[str]] = field(default_factory=list)
    before: list[Rollout] = field(default_factory=list)
    meanwhile: list[Rollout] = field(default_factory=list)
    across: list[Rollout] = field(default_factory=list)

    def look(self, engine: "Engine", sequences: list[list[int]]) -> None:
        self.scores.append(engine._score(sequences))
        self.layers.append(engine.layers())


class Kept(list[Any]):
    """In the place of the connection to a client."""

    send = list.append


class Engine(server.Server):
    def __init__(self, settings: Settings) -> None:
        self.sent = Kept()
        super().__init__(self.sent, settings)  # type: ignore[arg-type]

    def sample(self, requests: list[Request], steps: int | None = None) -> list[Rollout]:
        """So many steps of these requests and of those before, or all that are left."""
        if requests:
            self._handle(Submit(tuple(requests)))
        while self._has_work() and steps != 0:
            self._step()
            steps = steps and steps - 1
        found = sorted((told for told in self.sent if isinstance(told, Rollout)), key=lambda rollout: rollout.id)
        self.sent.clear()
        return found

    def until_all(self, of_worker: Any) -> None:
        while not all(self._engine.collective_rpc(of_worker)):
            time.sleep(0.01)

    def layers(self) -> list[str]:
        return self._engine.collective_rpc(_layers)


def _layers(worker: Any) -> str:
    import torch

    model, digest = worker.model_runner.get_model(), hashlib.blake2b()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(name.encode() + tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _has_begun(worker: Any) -> bool:
    buffer = worker.weight_transfer_engine._buffer
    return buffer is not None and any(tensor.any() for tensor in buffer._tensors.values())


def _has_arrived(worker: Any) -> bool:
    return worker.weight_transfer_engine._arrived.done()


def requests(name: str, count: int, tokens: int) -> list[Request]:
    return [Request(f"{name}/{i}", tuple(range(5 + i, 15 + 2 * i)), Sampling(tokens), seed=i) for i in range(count)]


def main() -> None:
    vllm_cpu_patches.set_environment()
    from torch.distributed import TCPStore

    job = json.loads(Path(sys.argv[1]).read_text())
    config = RolloutConfig(max_model_len=64, max_num_seqs=4, tensor=job["tensor"], deterministic=True)
    engine, told = Engine(Settings(job["model"], config, 0)), Told()
    engine._answer(JoinRefit("127.0.0.1", job["port"], MEETING, job["first_rank"]))

    *in_place, buffered = enumerate(job["checks"])
    for weights in in_place:
        engine._answer(ReceiveWeights(*weights))
        told.look(engine, job["sequences"])
    told.before = engine.sample(requests("same", 3, 20))
    engine._answer(BufferWeights(*buffered))
    engine.until_all(_has_begun)
    told.meanwhile = engine.sample(requests("same", 3, 20))
    assert not any(engine._engine.collective_rpc(_has_arrived))
    assert engine.layers() == told.layers[-1]
    engine.sample(requests("across", 1, 40), steps=5)
    TCPStore("127.0.0.1", job["port"], wait_for_workers=False).set(SAMPLED, "")
    engine.until_all(_has_arrived)
    assert engine.layers() == told.layers[-1]
    engine.sample([], steps=5)
    engine._answer(ReceiveWeights(*buffered))
    told.across = engine.sample([])
    told.look(engine, job["sequences"])
    Path(job["out"]).write_bytes(pickle.dumps(vars(told)))
    sys.stdout.flush()
    engine._engine.engine_core.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
