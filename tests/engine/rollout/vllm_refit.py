"""Run as a program: a vLLM engine that is refitted by trainer ranks elsewhere, and scores after each refit.

    python vllm_refit.py JOB

JOB is a JSON file: {"model": folder, "tensor": n, "port": of the store, "first_rank": n, "checks": [...],
"sequences": [...], "out": file}. What it scored is pickled to `out`.
"""

import json
import os
import pickle
import sys
from pathlib import Path

from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout import server
from cascade_rl.engine.rollout.protocol import Settings
from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches


def main() -> None:
    vllm_cpu_patches.set_environment()
    job = json.loads(Path(sys.argv[1]).read_text())
    config = RolloutConfig(max_model_len=64, max_num_seqs=4, tensor=job["tensor"])
    served = server.Server(None, Settings(job["model"], config, 0))
    engine = served._engine
    meeting = {"address": "127.0.0.1", "port": job["port"], "meeting": "first", "first_rank": job["first_rank"]}
    engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": meeting})
    scores = []
    for version, check in enumerate(job["checks"]):
        engine.collective_rpc("start_weight_update")
        engine.collective_rpc("update_weights", kwargs={"update_info": {"version": version, "check": check}})
        engine.collective_rpc("finish_weight_update")
        assert engine.reset_prefix_cache(reset_running_requests=True)
        scores.append(served._score(job["sequences"]))
    Path(job["out"]).write_bytes(pickle.dumps(scores))
    sys.stdout.flush()
    engine.engine_core.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
