"""Who computes the log-probs of a head: ours, plain torch, and three fused kernels of other people.

Each takes hidden [tokens, hidden], weight [vocab, hidden], targets [tokens] int64 and gives [tokens], differentiable.
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
    """What everyone writes first: logits in the dtype of the model, float32 softmax."""
    return torch.log_softmax((hidden @ weight.T).float(), -1).gather(1, targets[:, None])[:, 0]


def eager_float32(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The same with the accuracy of ours."""
    return eager(hidden.float(), weight.float(), targets)


def liger(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

    return -LigerFusedLinearCrossEntropyLoss(reduction="none")(weight, hidden, targets)


def cut_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """With its default filter, which leaves small gradients out. bfloat16 and float16 only."""
    from cut_cross_entropy import linear_cross_entropy

    return -linear_cross_entropy(hidden, weight, targets, reduction="none")


def verl(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Hidden sizes that are multiples of 128 only."""
    return _verl_kernel().linear_cross_entropy(hidden, weight, targets, 1.0, "none", None)[0]


def _verl_kernel() -> ModuleType:
    """verl's kernel without the rest of verl, which imports ray and more."""
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
    """By name, ours first: what breaks a GPU's context takes the rest of the run with it."""
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
