"""The fields of vLLM that a launcher may pass on reach an engine's arguments, and no others do."""

from dataclasses import fields
from pathlib import Path
from types import UnionType
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

from cascade_rl.engine.rollout.server import _engine_arguments  # noqa: E402

SMALL = {"max_model_len": 64, "max_num_seqs": 4, "kv_cache_mib": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config("qwen3", tmp_path_factory.mktemp("model"))


def arguments(folder: Path, **keys: Any) -> dict[str, Any]:
    return _engine_arguments(Settings(str(folder), RolloutConfig(**SMALL, **keys), seed=0))


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
    theirs = {item.name: item.type for item in fields(EngineArgs)}
    assert set(" ".join(VllmFields.OWNED.values()).split()) <= theirs.keys()
    for name, hint in get_type_hints(VllmFields).items():
        if name in VllmFields().names():
            assert kinds(hint) <= kinds(theirs[name]), name


def kinds(hint: Any) -> set[Any]:
    """The types of a field without None; a tuple counts as a list."""
    options = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    return {list if get_origin(option) is tuple else get_origin(option) or option for option in options} - {type(None)}
