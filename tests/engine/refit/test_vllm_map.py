"""The map against vLLM itself: names, shapes and numbers of what its own loaders make of a checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.models.name_map import Cut
from cascade_rl.engine.refit.vllm_map import WorkerPlace, worker_shards
from cascade_rl.engine.rollout.server_process import SAFE_PATH
from tests.engine.refit.refit_layouts import (
    DEEPSEEK_V3,
    GLM4_MOE,
    NEMOTRON,
    QWEN3_MOE,
    QWEN3_NEXT,
    hf_numbers,
    laid_out,
)

# what the kernels of vLLM ask for: a head width, and experts of a multiple of 32 on each worker
WIDE = {"head_dim": 64, "hidden_size": 32, "moe_intermediate_size": 128, "dtype": "float32"}
NARROW = {name: width for name, width in WIDE.items() if name != "head_dim"} | {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
LLAMA = {key: value for key, value in QWEN3_MOE.items() if "expert" not in key and key != "moe_intermediate_size"}
MODELS = {
    "nemotron_h": NEMOTRON | WIDE | {"model_type": "nemotron_h", "n_shared_experts": 1},
    "qwen3_moe": QWEN3_MOE | WIDE | {"model_type": "qwen3_moe"},
    "qwen3_next": QWEN3_NEXT | WIDE | {"model_type": "qwen3_next", "shared_expert_intermediate_size": 128},
    "qwen3": LLAMA | WIDE | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True},
    "qwen2": LLAMA | WIDE | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 512},
    "llama": LLAMA | WIDE | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "glm4_moe": GLM4_MOE | WIDE,
    "deepseek_v3": DEEPSEEK_V3 | NARROW,
    "moonlight": DEEPSEEK_V3 | NARROW | {"q_lora_rank": None},
}
# 4 workers share 2 key/value heads; expert parallel workers hold whole experts
CASES = [
    ("nemotron_h", 1, False),
    ("nemotron_h", 4, False),
    ("nemotron_h", 2, True),
    ("qwen3_moe", 2, False),
    ("qwen3_moe", 2, True),
    ("qwen3_next", 2, True),
    ("qwen3", 2, False),
    ("qwen2", 4, False),
    ("llama", 1, False),
    ("glm4_moe", 2, True),
    ("deepseek_v3", 2, True),
    ("moonlight", 1, False),
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of what vLLM holds, one for each case; named by its number."""
    root = tmp_path_factory.mktemp("vllm_map")
    for family, hf in MODELS.items():
        (root / family).mkdir()
        (root / family / "config.json").write_text(json.dumps(hf))
        save_file(hf_numbers(hf), root / family / "model.safetensors")
    cases = []
    for number, (family, tensor, expert) in enumerate(CASES):
        (root / str(number)).mkdir()
        cases.append({"model": f"{root / family}", "tensor": tensor, "expert": expert, "out": f"{root / str(number)}"})
    (root / "cases.json").write_text(json.dumps(cases))
    program = Path(__file__).with_name("vllm_shards.py")
    run = subprocess.run(
        [sys.executable, program, root / "cases.json"],
        env=SAFE_PATH | {"HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo", "PATH": "", "HOME": os.environ["HOME"]},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return root


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: " ".join(map(str, CASES[number])))
def test_workers_hold_what_vllm_loads(number: int, loaded: Path) -> None:
    family, tensor, expert = CASES[number]
    hf = MODELS[family]
    for rank in range(tensor):
        cut = Cut(rank, tensor)
        shards = worker_shards(hf, WorkerPlace(cut, cut if expert else Cut()))
        found = load_file(loaded / str(number) / f"{rank}.safetensors")
        assert {shard.name: shard.shape for shard in shards} == {name: array.shape for name, array in found.items()}
        for shard in shards:
            wanted = laid_out(shard.shape, shard.blocks, hf_numbers(hf))
            padding = np.isnan(wanted)
            assert shard.padded == padding.any()
            if shard.minus_exp:
                wanted = -torch.from_numpy(wanted).exp().numpy()
            np.testing.assert_array_equal(found[shard.name][~padding], wanted[~padding], err_msg=shard.name)
            assert (found[shard.name][padding] == 0).all()


def test_a_size_that_would_break_a_head_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"must divide the 8 query heads of .*q_proj.weight; found 3: change `rollout"):
        worker_shards(QWEN3_MOE | {"vocab_size": 192}, WorkerPlace(Cut(0, 3)))


def test_the_latent_of_keys_is_stacked_on_that_of_queries_if_there_is_one() -> None:
    """Both are whole on every worker, and are one linear in the models of vLLM that have latents."""
    numbers, attention = hf_numbers(DEEPSEEK_V3), "model.layers.0.self_attn"
    shards = {shard.name: shard for shard in worker_shards(DEEPSEEK_V3, WorkerPlace(Cut(1, 2)))}
    stacked = shards[f"{attention}.fused_qkv_a_proj.weight"]
    parts = [numbers[f"{attention}.{name}.weight"] for name in ("q_a_proj", "kv_a_proj_with_mqa")]
    np.testing.assert_array_equal(laid_out(stacked.shape, stacked.blocks, numbers), np.concatenate(parts))
    assert f"{attention}.kv_a_proj_with_mqa.weight" not in shards
    alone = {shard.name for shard in worker_shards(DEEPSEEK_V3 | {"q_lora_rank": None}, WorkerPlace())}
    assert {f"{attention}.q_proj.weight", f"{attention}.kv_a_proj_with_mqa.weight"} <= alone
