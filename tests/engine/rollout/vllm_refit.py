"""Run as a program: a vLLM engine that is refitted by trainer ranks elsewhere, and scores after each refit.

    python vllm_refit.py JOB

JOB is a JSON file: {"model": folder, "tensor": n, "port": of the store, "first_rank": n, "meetings": {name: checks},
"buffered": names of those whose weights arrive in a buffer, "sequences": [...], "out": file}. What it scored is pickled
to `out`, and hashes of what its workers hold.
"""

import hashlib
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout import server
from cascade_rl.engine.rollout.protocol import Settings
from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches

vllm_cpu_patches.set_environment()

import torch  # noqa: E402

from cascade_rl.engine.rollout.vllm_worker import weight_transfer  # noqa: E402


def watch(worker: Any) -> None:
    """Keeps a hash of what each layer of a worker is packed of: kernels hide what they have packed."""
    names = {layer: name for name, layer in worker.model_runner.get_model().named_modules()}
    process, worker.packed = weight_transfer._layerwise_process, {}

    def record(layer: torch.nn.Module, info: Any) -> None:
        tensors = (tensor.detach().flatten().view(torch.uint8) for tensor in layer.parameters(recurse=False))
        worker.packed[names[layer]] = [hashlib.sha256(tensor.numpy()).hexdigest() for tensor in tensors]
        process(layer, info)

    weight_transfer._layerwise_process = record


def packed(worker: Any) -> dict[str, list[str]]:
    return dict(worker.packed)


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    config = RolloutConfig(max_model_len=64, max_num_seqs=4, tensor=job["tensor"])
    served = server.Server(None, Settings(job["model"], config, 0))
    engine = served._engine
    engine.collective_rpc(watch)
    scores, digests, version = [], [], 0
    for name, checks in job["meetings"].items():
        meeting = {"address": "127.0.0.1", "port": job["port"], "meeting": name, "first_rank": job["first_rank"]}
        engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": meeting})
        for check in checks:
            if name in job["buffered"]:
                engine.collective_rpc("buffer_weights", args=(version, check))
            engine.collective_rpc("start_weight_update")
            engine.collective_rpc("update_weights", kwargs={"update_info": {"version": version, "check": check}})
            engine.collective_rpc("finish_weight_update")
            assert engine.reset_prefix_cache(reset_running_requests=True)
            scores.append(served._score(job["sequences"]))
            digests.append(engine.collective_rpc(packed))
            version += 1
    Path(job["out"]).write_bytes(pickle.dumps((scores, digests)))
    sys.stdout.flush()
    engine.engine_core.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
