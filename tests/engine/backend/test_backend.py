"""What a backend promises Megatron, and a world that does not hold a whole number of replicas."""

import os
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import triton
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig
from torch._inductor.runtime.cache_dir_utils import cache_dir

from cascade_rl.engine.backend import machine as backend_module
from cascade_rl.engine.backend.machine import COMPILED, Backend, backend
from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import ParallelConfig
from tests.gloo import run_ranks

ONE = ParallelConfig()


def made(monkeypatch: pytest.MonkeyPatch, cuda: bool) -> Backend:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(backend_module.cpu_shim, "install", lambda: None)
    return backend.__wrapped__()


@pytest.mark.parametrize(("cuda", "device", "group"), [(True, "cuda:0", "nccl"), (False, "cpu", "gloo")])
def test_backends(monkeypatch: pytest.MonkeyPatch, cuda: bool, device: str, group: str) -> None:
    machine = made(monkeypatch, cuda)
    assert (str(machine.device), machine.process_group) == (device, group)
    assert machine.config_overrides.keys() <= {field.name for field in fields(TransformerConfig)}


def test_compiled_kernels_are_kept_where_their_makers_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """But for those whose place the environment says. On a CPU nothing is compiled, and vLLM's files stay shared."""
    for variable in COMPILED:
        monkeypatch.setenv(variable, "restored afterwards")
        del os.environ[variable]
    made(monkeypatch, cuda=False).keep_compiled(tmp_path)
    assert not os.environ.keys() & COMPILED
    os.environ["TRITON_CACHE_DIR"] = "elsewhere"
    made(monkeypatch, cuda=True).keep_compiled(tmp_path)
    assert cache_dir() == str(tmp_path / "inductor")
    assert triton.knobs.cache.dir == "elsewhere"
    assert os.environ.keys() >= COMPILED.keys()


def test_a_gpu_refuses_float32_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    card, host = (made(monkeypatch, cuda=cuda) for cuda in (True, False))
    for machine, precision in ((card, "bfloat16"), (host, "bfloat16"), (host, "float32")):
        machine.check_precision(precision)
    told = "parallel.precision: expected bfloat16 on a GPU, found float32. .* no attention under context paral"
    with pytest.raises(UserError, match=f"{told}.*: set parallel.precision=bfloat16"):
        card.check_precision("float32")


@pytest.mark.parametrize("installed", [True, False])
def test_flex_is_offered_where_deepep_is_installed(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.setattr(backend_module, "find_spec", {"deep_ep": installed}.get)
    assert ("flex" in made(monkeypatch, cuda=True).dispatchers) == installed
    assert "flex" not in made(monkeypatch, cuda=False).dispatchers


@pytest.mark.parametrize(
    ("world", "parallel", "message"),
    [
        (1, ParallelConfig(tensor=2), r"multiple of 2 \(tensor 2 x pipeline 1 x context 1\), found 1 ranks"),
        (2, ParallelConfig(tensor=2, pipeline=2), "multiple of 4 .* found 2 ranks"),
        (1, ParallelConfig(expert=2), r"multiple of 2 \(expert 2 x expert_tensor 1 x pipeline 1\), found 1 ranks"),
        (2, ParallelConfig(expert=2, expert_tensor=2), "multiple of 4 .* found 2 ranks"),
    ],
)
def test_a_world_that_does_not_fit(world: int, parallel: ParallelConfig, message: str) -> None:
    with pytest.raises(UserError, match=f"{message}: change nproc or the parallel sizes"):
        run_ranks(world, initialize_distributed, parallel, 1)


def groups_and_draws(parallel: ParallelConfig, seed: int) -> tuple[tuple[int, ...], float]:
    initialize_distributed(parallel, seed)
    state = parallel_state
    sizes = (
        state.get_tensor_model_parallel_world_size(),
        state.get_pipeline_model_parallel_world_size(),
        state.get_expert_model_parallel_world_size(),
        state.get_expert_tensor_parallel_world_size(),
        state.get_data_parallel_world_size(),
    )
    return sizes, float(torch.rand(1))


def test_ranks_are_cut_as_configured_and_seeded_alike() -> None:
    parallel = ParallelConfig(tensor=2, expert=2, sequence=True)
    found = run_ranks(2, groups_and_draws, parallel, 5)
    assert [sizes for sizes, _ in found] == [(2, 1, 2, 1, 1)] * 2
    assert {draw for _, draw in found} == {float(torch.rand(1, generator=torch.Generator().manual_seed(5)))}
