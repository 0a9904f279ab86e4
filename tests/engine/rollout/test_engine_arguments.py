"""What an engine asks of its card, by vLLM's own checks: none of them runs on a CPU by itself."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cascade_rl.engine.backend.machine import COMPILED
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout.protocol import Settings
from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches
from tests.engine.rollout.tiny_models import write_config

vllm_cpu_patches.set_environment()

from vllm import envs  # noqa: E402
from vllm.config import VllmConfig  # noqa: E402
from vllm.distributed.aux_output_connector import connector, worker  # noqa: E402
from vllm.v1.worker.utils import request_memory  # noqa: E402

from cascade_rl.engine.rollout.server import _engine_arguments  # noqa: E402

GIB = 1 << 30
CARD = {"device_": "cuda:0", "total_memory": 80 * GIB}
BLOCK, LAYERS, TOPK = 4, 3, 2


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the CUDA build of vLLM were installed."""
    monkeypatch.setattr(vllm_cpu_patches, "installed", lambda: False)


def arguments(family: str, folder: Any, **changed: Any) -> dict[str, Any]:
    config = RolloutConfig(max_model_len=64, max_num_seqs=4, kv_cache_mib=16, **changed)
    return _engine_arguments(Settings(str(write_config(family, folder)), config, seed=0))


@pytest.mark.parametrize(("family", "states"), [("qwen3_next", "float32"), ("qwen3", None)])
def test_states_to_which_every_token_adds_are_float32(family: str, states: str | None, tmp_path: Path) -> None:
    """vLLM would keep those of Qwen3-Next in the model's dtype."""
    found = arguments(family, tmp_path / "model", dtype="bfloat16")
    assert found.get("mamba_ssm_cache_dtype") == states


def asked(free: int, utilization: float) -> int:
    snapshot = SimpleNamespace(**CARD, free_memory=free)
    return request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=utilization))


def test_an_engine_starts_beside_a_trainer_that_holds_the_card(tmp_path_factory: pytest.TempPathFactory) -> None:
    utilization = arguments("qwen3", tmp_path_factory.mktemp("model"))["gpu_memory_utilization"]
    assert asked(2 * GIB, utilization) < 2 * GIB


def test_by_vllms_own_share_it_would_not() -> None:
    with pytest.raises(ValueError, match="is less than desired GPU memory utilization"):
        asked(60 * GIB, 0.92)


def check_routes(asked_for: dict[str, Any]) -> None:
    """vLLM's own check of an engine with model runner V2 that returns the experts of each token."""
    VllmConfig._verify_aux_output_compatibility(
        SimpleNamespace(  # type: ignore[arg-type]
            aux_output_config=SimpleNamespace(enabled=asked_for["enable_return_routed_experts"]),
            cache_config=SimpleNamespace(enable_prefix_caching=asked_for["enable_prefix_caching"]),
            model_config=SimpleNamespace(runner_type="generate", is_moe=True),
            parallel_config=SimpleNamespace(
                pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1
            ),
            use_v2_model_runner=True,
            speculative_config=None,
            kv_transfer_config=None,
        )
    )


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("family", ["qwen3_moe", "nemotron_h"])
def test_an_engine_that_returns_experts_caches_prefixes(
    family: str, deterministic: bool, on_cuda: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """vLLM keeps the experts of a block under the hash of the block, and starts only with both."""
    found = arguments(family, tmp_path_factory.mktemp("model"), deterministic=deterministic)
    assert found["enable_return_routed_experts"]
    check_routes(found)
    with pytest.raises(ValueError, match="requires prefix caching"):
        check_routes(found | {"enable_prefix_caching": False})


def test_without_routes_a_deterministic_engine_caches_none(
    on_cuda: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = [arguments("qwen3", tmp_path_factory.mktemp("m"), deterministic=bits) for bits in (False, True)]
    assert [one["enable_prefix_caching"] for one in found] == [True, False]


def test_vllm_keeps_its_kernels_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "VLLM_CACHE_ROOT" in COMPILED
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/run/cache/vllm")
    assert envs.VLLM_CACHE_ROOT == "/run/cache/vllm"


class Routes:
    """Stands for the worker's `RoutedExpertsCapturer`: what the model chose in a step."""

    shape_per_token, output_dtype_name = (LAYERS, TOPK), "uint8"

    def __init__(self, **_: Any) -> None:
        self.draw = np.random.default_rng(0)

    def snapshot_routing_data(self, rows: int) -> torch.Tensor:
        return torch.from_numpy(self.draw.integers(0, 128, (rows, LAYERS, TOPK), np.uint8))


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> Iterator[worker.AuxOutputWorkerConnector]:
    monkeypatch.setattr(worker, "RoutedExpertsCapturer", Routes)
    monkeypatch.setattr(worker, "bind_routed_experts_capturer", lambda *_: None)
    monkeypatch.setattr(worker, "get_tp_group", lambda: SimpleNamespace(is_first_rank=True))
    monkeypatch.setattr(worker, "resolve_kv_cache_block_sizes", lambda *_: (BLOCK, BLOCK))
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64, max_num_seqs=4),
        aux_output_config=SimpleNamespace(max_bytes=None),
        max_concurrent_batches=1,
    )
    found = worker.AuxOutputWorkerConnector(
        vllm_config=config,  # type: ignore[arg-type]
        model=torch.nn.Module(),
        kv_cache_config=SimpleNamespace(num_blocks=64),  # type: ignore[arg-type]
    )
    yield found
    found.close()


def prefilled(
    scheduler: connector.AuxOutputSchedulerConnector, routes: worker.AuxOutputWorkerConnector, name: str, cached: int
) -> np.ndarray:
    """The experts that vLLM returns for a request whose prompt has two blocks and a token, `cached` of them cached."""
    tokens = 2 * BLOCK + 1
    request: Any = SimpleNamespace(
        request_id=name,
        block_hashes=[b"first", b"other"],
        sampling_params=SimpleNamespace(routed_experts_prompt_start=0),
        num_prompt_tokens=tokens,
        num_output_tokens=0,
        num_tokens=tokens,
    )
    step: Any = SimpleNamespace(num_scheduled_tokens={name: tokens - cached})
    routes.begin_step(scheduler.build_connector_meta(step, {name: request}))
    batch: Any = SimpleNamespace(
        req_ids=[name],
        query_start_loc_np=np.array([0, tokens - cached]),
        num_computed_tokens_np=np.array([cached]),
    )
    pending = routes.prepare_output(batch)
    assert pending
    pending.enqueue_cpu_copy(np.ones(1, np.int32), np.zeros(1, np.int32))
    request.num_tokens += 1  # the one that was sampled
    rows = scheduler.take_output(request, pending.process_output())
    scheduler.request_finished(request)
    assert rows is not None
    return rows


def test_a_cached_prefix_has_the_experts_of_its_first_computation(routes: worker.AuxOutputWorkerConnector) -> None:
    """They are those with which its keys and values were made. After new weights nothing of them is left."""
    scheduler = connector.AuxOutputSchedulerConnector()
    first = prefilled(scheduler, routes, "first", cached=0)
    again = prefilled(scheduler, routes, "again", cached=2 * BLOCK)
    assert first.shape == again.shape == (2 * BLOCK + 1, LAYERS, TOPK)
    assert np.array_equal(again[:-1], first[:-1])
    scheduler.reset()
    assert not (prefilled(scheduler, routes, "new weights", cached=0)[:-1] == first[:-1]).all()
