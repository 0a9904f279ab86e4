"""The shim does nothing where CUDA exists, hides no call that it does not name, and patches what is there."""

import inspect
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.models.hybrid import hybrid_block
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.ssm import mamba_mixer
from megatron.core.tensor_parallel import mappings, random
from megatron.core.transformer.moe import token_dispatcher

from cascade_rl.engine.backend import cpu_shim
from cascade_rl.engine.backend.machine import backend
from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.settings import ParallelConfig
from tests.gloo import run_ranks

PATCHED: tuple[Any, ...] = (
    filesystem_async,
    hybrid_block,
    DistributedOptimizer,
    mamba_mixer,
    mappings,
    random,
    token_dispatcher,
)

ON_CUDA = """
import sys, torch
from torch.overrides import _get_current_function_mode_stack
torch.cuda.is_available = lambda: True
chosen = []
torch.cuda.set_device = chosen.append
before = dict(vars(torch.cuda))
from cascade_rl.engine.backend import cpu_shim
from cascade_rl.engine.backend.machine import backend
cpu_shim.install()
machine = backend()
assert (type(machine).__name__, machine.process_group) == ("CudaBackend", "nccl"), machine
assert str(machine.device) == "cuda:3" and chosen == [machine.device], (machine, chosen)
assert dict(vars(torch.cuda)) == before
assert _get_current_function_mode_stack() == []
assert torch._dynamo.eval_frame._stance.stance == "default"
assert not any(name.startswith("megatron") for name in sys.modules)
"""


def test_inert_on_cuda() -> None:
    subprocess.run([sys.executable, "-c", ON_CUDA], env={**os.environ, "LOCAL_RANK": "3"}, check=True)


def attributes(owner: ModuleType | type) -> dict[str, Any]:
    return dict(vars(owner))


def changes_on_install() -> dict[str, set[str]]:
    """Per owner, the names whose value the shim changed; with a + in front of those that it invented."""
    owners = {owner.__name__: owner for owner in (torch.cuda, *PATCHED)}
    before = {name: attributes(owner) for name, owner in owners.items()}
    cpu_shim.install()
    return {
        name: {
            key if key in before[name] else f"+{key}"
            for key, value in attributes(owner).items()
            if before[name].get(key) is not value
        }
        for name, owner in owners.items()
    }


def source_of(owner: str) -> str:
    """Of a module; of a class none: nothing is invented in it."""
    return inspect.getsource(sys.modules[owner]) if owner in sys.modules else ""


def test_only_listed_names_change_and_each_of_them_existed() -> None:
    """A patch of a name that a newer torch or Megatron no longer has would do nothing, silently."""
    [changes] = run_ranks(1, changes_on_install)
    assert changes.pop("torch.cuda") == set(cpu_shim.TORCH_CUDA)
    assert len(changes) == len(PATCHED)
    for owner, names in changes.items():
        assert names, f"{owner} is not patched at all"
        # what a module imports from Transformer Engine is missing without it, but the module names it
        invented = [name for name in names if name.startswith("+") and name[1:] not in source_of(owner)]
        assert not invented, owner


def error_of(call: Any) -> str:
    with pytest.raises((RuntimeError, AssertionError)) as error:
        call()
    return f"{type(error.value).__name__}: {error.value}"


UNLISTED = {
    "mem_get_info": lambda: torch.cuda.mem_get_info(0),
    "get_device_properties": lambda: torch.cuda.get_device_properties(0),
    "current_blas_handle": lambda: torch.cuda.current_blas_handle(),
    "default_stream": lambda: torch.cuda.default_stream(),
    "Tensor.to": lambda: torch.zeros(1).to("cuda"),
    "Tensor.to(cuda:0)": lambda: torch.zeros(1).to(torch.device("cuda", 0)),
}


def errors_of_unlisted() -> tuple[dict[str, str], dict[str, str]]:
    before = {name: error_of(call) for name, call in UNLISTED.items()}
    cpu_shim.install()
    return before, {name: error_of(call) for name, call in UNLISTED.items()}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the shim is for machines without CUDA")
def test_an_unlisted_call_raises_what_torch_raises() -> None:
    [(before, after)] = run_ranks(1, errors_of_unlisted)
    assert after == before
    assert all("CUDA" in error or "NVIDIA" in error for error in before.values())


def test_every_patch_has_a_reason() -> None:
    reasons = [reason for _, reason in cpu_shim.TORCH_CUDA.values()]
    reasons += [patch.__doc__ or "" for patch in cpu_shim.MEGATRON]
    assert len(reasons) > 10
    assert min(len(reason) for reason in reasons) >= 20


def test_another_megatron_is_refused_before_anything_is_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_shim, "_mode", None)
    monkeypatch.setattr(cpu_shim, "TESTED_MEGATRON", "0.18.0")
    before = attributes(torch.cuda)
    with pytest.raises(RuntimeError, match=r"tested with megatron-core 0\.18\.0, found 0\.19\.2: .*make setup"):
        cpu_shim.install()
    assert attributes(torch.cuda) == before


def literals() -> None:
    backend()
    assert torch.zeros(1, device="cuda").device.type == "cpu"
    assert torch.empty(2, device=torch.cuda.current_device(), pin_memory=True).device.type == "cpu"
    tensor = torch.ones(2)
    assert tensor.cuda() is tensor
    assert tensor.type() == "torch.cuda.FloatTensor"
    assert tensor.type(torch.float64).dtype == torch.float64
    assert torch.cuda.current_stream().query() and torch.cuda.Event().record() is not None
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.synchronize()


def test_megatron_literals_mean_the_cpu() -> None:
    run_ranks(1, literals)


def rng_draws() -> list[list[float]]:
    """Draws from the default stream around one of the model-parallel stream, twice from one seed."""
    initialize_distributed(ParallelConfig(), seed=11)
    draws = []
    for _ in range(2):
        torch.manual_seed(11)
        random.model_parallel_cuda_manual_seed(11, force_reset_rng=True)
        outside = torch.rand(1)
        with random.get_cuda_rng_tracker().fork():
            inside = torch.rand(2)
        with random.get_cuda_rng_tracker().fork():
            further = torch.rand(1)
        draws.append([*outside.tolist(), *inside.tolist(), *further.tolist(), *torch.rand(1).tolist()])
    return draws


def test_model_parallel_stream_is_a_stream_of_its_own() -> None:
    [(first, second)] = run_ranks(1, rng_draws)
    assert first == second
    assert len(set(first)) == len(first)
    torch.manual_seed(11)
    random_numbers = torch.rand(2).tolist()
    assert [first[0], first[-1]] == random_numbers


def uneven(sizes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    backend()
    torch.distributed.init_process_group("gloo")
    group = torch.distributed.group.WORLD
    rank = group.rank()
    mine = torch.arange(sizes[rank] * 2.0).view(-1, 2) + 100 * rank
    gathered = mappings._gather_along_first_dim(mine, group, sizes)
    return gathered, mappings._reduce_scatter_along_first_dim(gathered + rank, group, sizes)


@pytest.mark.parametrize("sizes", [[3, 1], [0, 2], [2, 2]])
def test_uneven_gather_and_scatter(sizes: list[int]) -> None:
    parts = [torch.arange(size * 2.0).view(-1, 2) + 100 * rank for rank, size in enumerate(sizes)]
    for rank, (gathered, scattered) in enumerate(run_ranks(2, uneven, sizes)):
        assert torch.equal(gathered, torch.cat(parts))
        assert torch.equal(scattered, 2 * parts[rank] + 1)  # x and x + 1, summed
