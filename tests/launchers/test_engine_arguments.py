"""What the published launchers ask of vLLM on each card, by the code with which the engine's process asks.

vLLM builds its EngineArgs and ModelConfig out of them, as on a GPU, and starts nothing.
"""

import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout.protocol import Settings
from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches
from cascade_rl.launchers.plan.model import PUBLISHED
from cascade_rl.rl_stages.config.cascade import Cascade

vllm_cpu_patches.set_environment()

from vllm.platforms import current_platform  # noqa: E402

from cascade_rl.engine.rollout.server import _engine_arguments  # noqa: E402

LAUNCHERS = ("cascade2_30b_a3b", "cascade1_8b", "cascade1_8b_thinking", "cascade1_14b")
CARDS = ("h100", "b200")
GIB = 1 << 30
pytestmark = pytest.mark.process  # vLLM asks what machine this is


def cascade(launcher: str) -> Cascade:
    return importlib.import_module(f"cascade_rl.launchers.{launcher}").CASCADE


def rollouts(launcher: str) -> Iterator[RolloutConfig]:
    """Each setting of the launcher's engines once: most stages share theirs."""
    on_cards = (replace(cascade(launcher), hardware=card) for card in CARDS)
    yield from {one.layout(stage).rollout: None for one in on_cards for stage in one.stages}


@pytest.fixture(autouse=True)
def _on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_cpu_patches, "installed", lambda: False)
    monkeypatch.setattr(current_platform, "is_sleep_mode_available", lambda: True)


def model(launcher: str, folder: Path) -> Path:
    """The published config.json, as the launcher's first lines tell to change it."""
    module = importlib.import_module(f"cascade_rl.launchers.{launcher}")
    config = json.loads((PUBLISHED / str(cascade(launcher).base.published) / "config.json").read_text())
    if told := re.search(r"max_position_embeddings to (\d+)", str(module.__doc__)):
        config["max_position_embeddings"] = int(told[1])
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def arguments(folder: Path, rollout: RolloutConfig) -> dict[str, Any]:
    return _engine_arguments(Settings(str(folder), rollout, seed=0))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_vllm_takes_what_every_stage_asks(launcher: str, tmp_path: Path) -> None:
    folder = model(launcher, tmp_path)
    experts = launcher == "cascade2_30b_a3b"
    for rollout in rollouts(launcher):
        asked = arguments(folder, rollout)
        assert asked["max_model_len"] == rollout.max_model_len
        assert asked["kv_cache_memory_bytes"] == rollout.kv_cache_mib << 20 >= 8 * GIB
        assert asked["gpu_memory_utilization"] * 79 * GIB < GIB  # the trainer is on the card
        assert (asked["tensor_parallel_size"], asked["dtype"]) == (rollout.tensor, "bfloat16")
        assert asked["distributed_executor_backend"] == ("mp" if rollout.tensor > 1 else "uni")
        assert asked["enable_sleep_mode"] is True
        assert asked["enable_return_routed_experts"] is (experts and rollout.replay_routes)
        assert asked["enable_prefix_caching"] is True  # without it vLLM returns no experts


@pytest.mark.parametrize("launcher", LAUNCHERS[1:])
def test_vllm_refuses_answers_longer_than_the_published_config_allows(launcher: str) -> None:
    """Which is why these launchers tell to change it."""
    folder = PUBLISHED / str(cascade(launcher).base.published)
    with pytest.raises(ValueError, match=r"max_model_len \(\d+\) is greater than .*max_position_embeddings"):
        arguments(folder, next(rollouts(launcher)))
