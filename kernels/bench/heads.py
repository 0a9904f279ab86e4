"""The providers of a head's log-probs: ours, plain torch, and the fused kernels of three other projects.

Each takes hidden [tokens, hidden], weight [vocab, hidden] and targets [tokens] int64, and returns differentiable
log-probs [tokens].
"""

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from cascade_rl.kernels.fused_linear_logprob import fused_linear_logprob

type Head = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return fused_linear_logprob(hidden, weight, targets, vocab_size=len(weight)).logprob


def eager(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The obvious way: logits in the dtype of the model, softmax in float32."""
    return torch.log_softmax((hidden @ weight.T).float(), -1).gather(1, targets[:, None])[:, 0]


def eager_float32(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The same in float32, which is as accurate as ours."""
    return eager(hidden.float(), weight.float(), targets)


def liger(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

    return -LigerFusedLinearCrossEntropyLoss(reduction="none")(weight, hidden, targets)


def cut_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """With its default filter, which drops small gradients. bfloat16 and float16 only."""
    from cut_cross_entropy import linear_cross_entropy

    return -linear_cross_entropy(hidden, weight, targets, reduction="none")


def verl(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Only for hidden sizes that are multiples of 128."""
    return _verl_kernel().linear_cross_entropy(hidden, weight, targets, 1.0, "none", None)[0]


def _verl_kernel() -> ModuleType:
    """verl's kernel without the rest of verl, which imports ray and other packages."""
    name = "verl.utils.kernel.linear_cross_entropy"
    if name not in sys.modules:
        spec = find_spec("verl")
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError("No module named 'verl'", name="verl")
        root = Path(spec.origin).parent
        sys.modules["verl"] = _package("verl", root)
        sys.modules["verl.utils"] = _package("verl.utils", root / "utils")
        sys.modules["verl.utils.device"] = _verl_device()
    return importlib.import_module(name)


def _package(name: str, folder: Path) -> ModuleType:
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    return module_from_spec(spec)


def _verl_device() -> ModuleType:
    device = ModuleType("verl.utils.device")
    device.__dict__.update(
        is_cuda_available=torch.cuda.is_available(),
        get_device_capability=torch.cuda.get_device_capability,
        get_device_name=lambda: "cuda",
        get_torch_device=lambda: torch.cuda,
    )
    return device


def heads(on_gpu: bool) -> dict[str, Head]:
    """Providers by name. Ours is first, because one that breaks the GPU's context ends the rest of the run."""
    if not on_gpu:
        return {"ours": ours, "torch eager": eager, "torch float32": eager_float32}
    return {
        "ours": ours,
        "torch eager": eager,
        "torch.compile": torch.compile(eager, dynamic=True),  # once for all shapes
        "liger": liger,
        "cut-cross-entropy": cut_cross_entropy,
        "verl": verl,
    }
