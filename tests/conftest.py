"""Shared by all tests: one thread, no network, the same seeds for each test."""

import gc
import os
import random
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

# Before torch, numpy or transformers are imported. Ranks and engines of the tests share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
# The folder `kernels/` of this repository must not become the import name `kernels` in `python -m` children.
os.environ.setdefault("PYTHONSAFEPATH", "1")
# Tests say themselves where NeMo-Gym's tables are, or that they are not there.
os.environ.pop("CASCADE_NEMO_GYM", None)

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests import tiers
from tests.bounded import bounded

ensure_cards = torch._C._ensureCUDADeviceGuardSet


def _no_cards_here(process: int = os.getpid()) -> None:
    """FakeTensorMode calls this where there is no CUDA. `tests/engine/train/on_fake_card.py` says what it does."""
    assert os.getpid() != process, (
        "expected FakeTensorMode in a process of its own (on_fake_card), found it in pytest's"
    )
    ensure_cards()


torch._C._ensureCUDADeviceGuardSet = _no_cards_here
gc.disable()  # until all is imported
torch.set_num_threads(1)
torch.set_num_interop_threads(1)
# The same examples each time, however long one takes. `--hypothesis-profile=default` looks for others.
settings.register_profile(
    "steady", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """A launcher that is run in this process adds its folder to PYTHONPATH, which goes into the jobs of later tests."""
    with patch.dict(os.environ):
        yield


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# Files whose tests take minutes. They begin first, so that at the end both of two cores have something short to do.
LONG = ("test_on_slurm.py", "test_cascade_end_to_end.py", "test_chaos.py", "test_invariance.py")
SHARING = "tests/engine/rollout"  # one engine per family for all its files


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Each test gets its markers. The order within a file stays, and that of all other files."""
    for item in items:
        tiers.mark(item)
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with nullcontext() if item.get_closest_marker("hours") else bounded():
        return (yield)


class ByEngines(LoadFileScheduling):
    """`--dist loadfile`, where files that share started engines stay on one worker too."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return SHARING if Path(file).parent == Path(SHARING) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByEngines | None:
    return ByEngines(config, log) if config.option.dist == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    tiers.forget_what_was_started()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Function) -> None:
    tiers.check_what_was_started(item)
