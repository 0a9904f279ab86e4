"""The CPU fix-ups do nothing where vLLM is not the CPU build."""

import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import numpy as np
import pytest

from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches


@pytest.fixture
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(vllm_cpu_patches, "distribution", absent)
    vllm_cpu_patches.installed.cache_clear()
    yield
    vllm_cpu_patches.installed.cache_clear()


def test_inert_with_the_cuda_build(cuda_build: None) -> None:
    environment, modules = dict(os.environ), set(sys.modules)
    arguments = {"max_model_len": 64, "enable_return_routed_experts": True}
    vllm_cpu_patches.set_environment()
    vllm_cpu_patches.apply()
    vllm_cpu_patches.record_routes(engine=None)
    vllm_cpu_patches.unlink_shared_memory(None)
    vllm_cpu_patches.refresh_packed(model=None)
    assert vllm_cpu_patches.supported(arguments) is arguments
    assert dict(os.environ) == environment
    assert set(sys.modules) == modules


def test_the_experts_of_a_running_request_are_those_of_all_its_steps(cuda_build: None) -> None:
    chunks = [np.full((rows, 3, 2), rows, np.uint8) for rows in (5, 1, 1)]
    states = {"a-1": SimpleNamespace(routed_experts_chunks=chunks)}
    engine = SimpleNamespace(output_processor=SimpleNamespace(request_states=states))
    assert vllm_cpu_patches.running_routes(engine, "a-1")[:, 0, 0].tolist() == [5] * 5 + [1, 1]


def test_active_with_the_cpu_build() -> None:
    assert vllm_cpu_patches.installed()
    supported = vllm_cpu_patches.supported({"max_model_len": 64, "enable_return_routed_experts": True})
    assert supported["enforce_eager"] is True
    assert supported["enable_return_routed_experts"] is False
    assert supported["attention_backend"] == "CPU_MLA"
