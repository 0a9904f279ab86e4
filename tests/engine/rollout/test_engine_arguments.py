"""What an engine asks of the card that it shares with the trainer, by vLLM's own check."""

from types import SimpleNamespace

import pytest

from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout.protocol import Settings
from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches
from tests.engine.rollout.tiny_models import write_config

vllm_cpu_patches.set_environment()

from vllm.v1.worker.utils import request_memory  # noqa: E402

from cascade_rl.engine.rollout.server import _engine_arguments  # noqa: E402

GIB = 1 << 30
CARD = {"device_": "cuda:0", "total_memory": 80 * GIB}


@pytest.fixture(scope="module")
def utilization(tmp_path_factory: pytest.TempPathFactory) -> float:
    folder = write_config("qwen3", tmp_path_factory.mktemp("model"))
    config = RolloutConfig(max_model_len=64, max_num_seqs=4, kv_cache_mib=16)
    return _engine_arguments(Settings(str(folder), config, seed=0))["gpu_memory_utilization"]


def asked(free: int, utilization: float) -> int:
    snapshot = SimpleNamespace(**CARD, free_memory=free)
    return request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=utilization))


def test_an_engine_starts_beside_a_trainer_that_holds_the_card(utilization: float) -> None:
    assert asked(2 * GIB, utilization) < 2 * GIB


def test_by_vllms_own_share_it_would_not() -> None:
    with pytest.raises(ValueError, match="is less than desired GPU memory utilization"):
        asked(60 * GIB, 0.92)
