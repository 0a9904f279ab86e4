"""What an engine asks of the card that it shares with the trainer, by vLLM's own check, and what is passed on to it."""

from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.passed_fields import VllmFields
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout.protocol import Settings
from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches
from tests.engine.rollout.tiny_models import write_config

vllm_cpu_patches.set_environment()

from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.v1.worker.utils import request_memory  # noqa: E402

from cascade_rl.engine.rollout.server import _engine_arguments  # noqa: E402

GIB = 1 << 30
CARD = {"device_": "cuda:0", "total_memory": 80 * GIB}


SMALL = {"max_model_len": 64, "max_num_seqs": 4, "kv_cache_mib": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config("qwen3", tmp_path_factory.mktemp("model"))


def arguments(folder: Path, **keys: Any) -> dict[str, Any]:
    return _engine_arguments(Settings(str(folder), RolloutConfig(**SMALL, **keys), seed=0))


@pytest.fixture(scope="module")
def utilization(folder: Path) -> float:
    return arguments(folder)["gpu_memory_utilization"]


def asked(free: int, utilization: float) -> int:
    snapshot = SimpleNamespace(**CARD, free_memory=free)
    return request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=utilization))


def test_an_engine_starts_beside_a_trainer_that_holds_the_card(utilization: float) -> None:
    assert asked(2 * GIB, utilization) < 2 * GIB


def test_by_vllms_own_share_it_would_not() -> None:
    with pytest.raises(ValueError, match="is less than desired GPU memory utilization"):
        asked(60 * GIB, 0.92)


def test_passed_fields_reach_vllms_arguments_and_no_others_change(folder: Path) -> None:
    given = VllmFields(block_size=32, cudagraph_capture_sizes=(1, 2, 4), max_num_batched_tokens=512)
    with_fields, without = arguments(folder, vllm=given), arguments(folder)
    built = EngineArgs(**with_fields)
    assert (built.block_size, built.cudagraph_capture_sizes, built.max_num_batched_tokens) == (32, [1, 2, 4], 512)
    assert {name: value for name, value in with_fields.items() if name in without} == without


def test_what_an_engine_is_started_with_cannot_be_passed(folder: Path) -> None:
    """But for what a launcher has no other key for, the arguments that Cascade sets are refused by name."""
    assert set(VllmFields().names()).isdisjoint(arguments(folder))
    for name in arguments(folder).keys() - {"disable_log_stats"}:
        with pytest.raises(UserError, match=rf"rollout\.vllm\.{name}: expected a field that Cascade leaves to vLLM"):
            VllmFields(**{name: 1})


def test_every_field_is_vllms_with_its_type() -> None:
    theirs = get_type_hints(EngineArgs)
    assert set(" ".join(VllmFields.OWNED.values()).split()) <= theirs.keys()
    for name, hint in get_type_hints(VllmFields).items():
        if name in VllmFields().names():
            assert kinds(hint) <= kinds(theirs[name]), name


def kinds(hint: Any) -> set[Any]:
    """The types of a field without None; a tuple counts as a list."""
    options = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    return {list if get_origin(option) is tuple else get_origin(option) or option for option in options} - {type(None)}
