"""Run as a program: saves the parameters that vLLM's own weight loaders fill, before any is processed.

    python vllm_shards.py CASES

CASES is a JSON file: a list of {"model": folder, "tensor": n, "expert": bool, "out": folder}. A rank writes
`out`/RANK.safetensors. Ranks are forked, since importing vLLM takes longer than all the rest.
"""

import json
import multiprocessing
import os
import sys
from pathlib import Path

from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches

vllm_cpu_patches.set_environment()

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.model_loader.utils import initialize_model  # noqa: E402
from vllm.utils.torch_utils import set_default_torch_dtype  # noqa: E402


def save(model: str, tensor: int, expert: bool, out: str, rank: int) -> None:
    arguments = {
        "model": model,
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "max_model_len": 64,
        "max_num_seqs": 1,
        "tensor_parallel_size": tensor,
        "enable_expert_parallel": expert,
        "enable_prefix_caching": False,
    }
    supported = vllm_cpu_patches.supported(arguments) | {"distributed_executor_backend": "mp"}
    config = EngineArgs(**supported).create_engine_config()
    with set_current_vllm_config(config), set_default_torch_dtype(torch.float32):
        init_distributed_environment(tensor, rank, f"file://{out}/rendezvous", rank, "gloo")
        initialize_model_parallel(tensor)
        built = initialize_model(vllm_config=config)
        built.load_weights(load_file(Path(model) / "model.safetensors").items())
    parameters = {name: parameter.detach().contiguous() for name, parameter in built.named_parameters()}
    save_file(parameters, Path(out) / f"{rank}.safetensors")


def main() -> None:
    vllm_cpu_patches.apply()
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    for case in json.loads(Path(sys.argv[1]).read_text()):
        os.environ["VLLM_DIST_IDENT"] = f"vllm-shards-{os.getpid()}"  # of the shared memory of the workers' all-reduce
        ranks = [fork.Process(target=save, kwargs=case | {"rank": rank}) for rank in range(case["tensor"])]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        vllm_cpu_patches.unlink_shared_memory(None)
        if any(process.exitcode for process in ranks):
            sys.exit(f"a rank of {case} failed")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
