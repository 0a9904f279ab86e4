"""Only the backend knows CPU from CUDA: no other code names a device or asks for one.

The rule, read from the syntax tree, so that comments and docstrings may say what they like. Outside the files of
`MAY_KNOW`, the packages have
  * no attribute `cuda` (torch.cuda, tensor.cuda()), `is_cuda`, `is_cpu`, `is_available`, `get_device_name`;
  * no string that is a device, a device prefix or a process-group backend: "cuda", "cuda:0", "cpu", "nccl", "gloo";
  * no import of the modules that stand for CUDA ones: cpu_shim, torch_layers, ssm, fla.
`tensor.cpu()` is allowed: it means "to the host" on both. What Megatron and vLLM call cuda or cpu in names of their
own (get_cuda_rng_tracker, num_computed_tokens_cpu) is theirs.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("distillation", "engine", "kernels", "launchers", "moe", "rl_stages")
MAY_KNOW = (
    "engine/backend/machine.py",
    "engine/backend/cards.py",  # what a card says of itself
    "engine/backend/cpu_shim.py",
    "engine/backend/fla.py",  # stands for Triton's, and shares a convolution with what stands for Mamba's
    "engine/backend/wire.py",  # between two processes, of which one has no `backend()`
    "engine/train/fake_card.py",  # tensors that are on a card by name alone
    "engine/train/fake_kernels.py",
    "engine/train/dry_step.py",
    "kernels/runtime/launch.py",  # Triton where the tensors of an op are on a card
    "kernels/parts/slabs.py",  # products that cuBLAS has and the CPU has not
    "kernels/bench/",
    "kernels/gate.py",  # compiles for cards that are not here
    "launchers/bench/control.py",  # of CPU processes
    "launchers/bench/refit.py",  # the same
    "launchers/slurm/jobs.py",  # what a node is probed for
    "launchers/stage/in_job.py",  # the same
    "rl_stages/sandbox/walls/confinement.py",  # `cpu` is prlimit's name of processor time
)
ATTRIBUTES = {"cuda", "is_cuda", "is_cpu", "is_available", "get_device_name"}
DEVICE = re.compile(r"(cuda|cpu)(:\d*)?|nccl|gloo")
MODULES = re.compile(r"torch\.cuda|cascade_rl\.engine\.backend\.(cpu_shim|torch_layers|ssm|fla)")


def findings(source: str) -> list[str]:
    """What breaks the rule, as `line: what`."""
    return [f"{line}: {what}" for line, what in _found(ast.parse(source))]


def _found(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if name in ATTRIBUTES:
                yield node.lineno, f".{name}"
            case ast.Constant(value=str(text)) if DEVICE.fullmatch(text):
                yield node.lineno, repr(text)
            case ast.Import(names=names):
                yield from ((node.lineno, n.name) for n in names if MODULES.fullmatch(n.name))
            case ast.ImportFrom(module=module, names=names):
                imported = (module or "", *(f"{module}.{n.name}" for n in names))
                yield from ((node.lineno, name) for name in imported if MODULES.fullmatch(name))


def files() -> list[str]:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def test_no_device_outside_the_backend() -> None:
    outside = [name for name in files() if not name.startswith(MAY_KNOW)]
    assert len(outside) > 40
    broken = {name: found for name in outside if (found := findings((ROOT / name).read_text()))}
    assert broken == {}


@pytest.mark.parametrize("name", MAY_KNOW)
def test_the_exceptions_are_needed(name: str) -> None:
    assert any(findings((ROOT / path).read_text()) for path in files() if path.startswith(name))


def test_which_vllm_is_installed_is_decided_in_one_place() -> None:
    asked = [name for name in files() if "vllm_cpu_patches.installed" in (ROOT / name).read_text()]
    assert asked == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch\nif torch.cuda.is_available(): pass",
        "x.cuda()",
        "x.to('cuda')",
        "x.to(f'cuda:{rank}')",
        "torch.zeros(1, device='cpu')",
        "if x.device.type == 'cpu': pass",
        "if x.is_cuda: pass",
        "init_process_group('nccl')",
        "from torch.cuda import Stream",
        "from cascade_rl.engine.backend import cpu_shim",
        "from cascade_rl.engine.backend.torch_layers import TorchNorm",
        "import cascade_rl.engine.backend.ssm",
    ],
)
def test_the_rule_sees(source: str) -> None:
    assert findings(source)


@pytest.mark.parametrize(
    "source",
    [
        "'''On cuda or cpu.'''\n# torch.cuda\nx.detach().cpu().numpy()",
        "from megatron.core.tensor_parallel.random import get_cuda_rng_tracker",
        "from cascade_rl.engine.rollout import vllm_cpu_patches",
        "from megatron.core.ssm.mamba_layer import MambaLayer",
        "backend().device",
    ],
)
def test_the_rule_lets_pass(source: str) -> None:
    assert findings(source) == []
