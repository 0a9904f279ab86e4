"""Transformer Engine's own Python without its compiled half, which needs CUDA: its wheel has all of it.

    python FILE FOLDER backends < CASES
    python FILE FOLDER parameters

FOLDER is where the wheel was unpacked. The first prints, for each attention of the cases, which backends Transformer
Engine allows, as JSON. What cuDNN says, which the compiled half asks, is taken to be yes: the answer is what no line of
Python rules out. The second builds a rank's models on fake tensors, with Transformer Engine's layers and with ours, and
prints the parameters that differ in name, shape, dtype, or in what Megatron's DDP, optimizer and checkpoints know.
"""

import ast
import importlib
import importlib.machinery
import json
import re
import sys
import types
from collections import defaultdict
from enum import IntEnum
from pathlib import Path
from typing import Any
from unittest import mock

import torch

COMPILED, COMMON = "transformer_engine_torch", "transformer_engine.common"
ABSENT = ("onnx", "onnxscript", "nvdlfw_inspect", "nvdlfw_inspect.api")  # required by the compiled half alone
CUDNN = (9, 20, 0)  # nvidia-cudnn-cu13 of requirements/cuda.txt
PROPERTIES = types.SimpleNamespace(major=9, minor=0, multi_processor_count=132, name="H100", total_memory=80 << 30)
ENUMERATION = re.compile(r"(?:tex\.(?=[A-Z])|(?=NVTE_))(\w+)")
MARKS = {"sequence_parallel": False, "allreduce": True, "tensor_model_parallel": False, "partition_dim": -1}
NANO = {"hybrid_override_pattern": "ME*-", "num_hidden_layers": 4}
MODELS = {"nemotron_3_nano_30b_a3b": NANO, "qwen3_8b": {"num_hidden_layers": 1}}
WORLD = 64


class _Compiled(types.ModuleType):
    """A module of anything but the enumerations that Python mirrors."""

    def __init__(self, name: str, enumerations: dict[str, type[IntEnum]]) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(self).update(enumerations)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return vars(self).setdefault(name, mock.MagicMock(name=name))


def install(folder: Path) -> None:
    """Makes `import transformer_engine.pytorch` work out of the wheel that was unpacked into `folder`."""
    sys.path.insert(0, str(folder))
    sys.modules[COMPILED] = _Compiled(COMPILED, _enumerations(folder / "transformer_engine/pytorch"))
    for name in ABSENT:
        sys.modules[name] = _Compiled(name, {})
    common = sys.modules[COMMON] = _Compiled(COMMON, {})
    common.__path__ = [str(folder / "transformer_engine/common")]
    torch.cuda.current_device = lambda: 0  # type: ignore[assignment]
    torch.cuda.get_device_properties = lambda *_: PROPERTIES  # type: ignore[assignment]
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]
    importlib.import_module("transformer_engine").common = common  # type: ignore[attr-defined]


def _enumerations(sources: Path) -> dict[str, type[IntEnum]]:
    """`tex.DType.kByte` in the code says that `DType` has a `kByte`."""
    members: dict[str, dict[str, None]] = defaultdict(dict)
    for file in sorted(sources.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            named = isinstance(node, ast.Attribute) and not node.attr.startswith("__")
            if named and (found := ENUMERATION.fullmatch(ast.unparse(node.value))):
                members[found[1]][node.attr] = None
    return {owner: IntEnum(owner, list(names)) for owner, names in members.items()}


def allowed(capability: tuple[int, int], dtype: str, attention: dict[str, Any]) -> list[str]:
    """The backends that `get_attention_backend` leaves on such a card, the one that runs first."""
    from transformer_engine.pytorch.attention.dot_product_attention import utils

    from cascade_rl.engine.backend.cards import attention_backends

    utils.get_cudnn_version = lambda: CUDNN
    utils.get_device_compute_capability = lambda: capability
    utils._get_fused_attn_backend = lambda **_: (int(utils.FusedAttnBackend["F16_arbitrary_seqlen"]), "")
    return attention_backends(getattr(torch, dtype), **attention)


def parameters(name: str, provider: type) -> dict[str, list[Any]]:
    """Of one rank, by name: shape, dtype and MARKS, with Megatron's defaults for those that are not set."""
    import torch
    from megatron.core.models.hybrid import hybrid_block

    from cascade_rl.engine.backend.machine import CpuBackend
    from cascade_rl.engine.core.settings import ParallelConfig
    from cascade_rl.engine.models import build_model, read_config
    from cascade_rl.engine.models.dry_run import imagined_rank
    from cascade_rl.engine.train.dry_step import imagined_card
    from cascade_rl.engine.train.fake_card import CARD
    from cascade_rl.launchers.plan.model import PUBLISHED

    experts = {"expert": 16} if name.startswith("nemotron") else {}
    parallel = ParallelConfig(tensor=4, context=4, sequence=True, precision="bfloat16", **experts)
    norm = provider().layer_norm(rms_norm=True)
    with (
        imagined_rank(1, WORLD, parallel),
        imagined_card("sm90"),
        torch.device(CARD),
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(CpuBackend, "spec_provider", lambda _: provider()),
        mock.patch.object(hybrid_block, "TENorm", norm),
    ):
        model = build_model(read_config(PUBLISHED / name) | MODELS[name], parallel, seed=0)
        return {
            name: [list(p.shape), str(p.dtype), *(getattr(p, mark, default) for mark, default in MARKS.items())]
            for name, p in model.named_parameters()
        }


def differences(name: str) -> dict[str, Any]:
    from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider

    from cascade_rl.engine.backend.torch_layers import TorchSpecProvider

    theirs, ours = parameters(name, TESpecProvider), parameters(name, TorchSpecProvider)
    return {
        name: (theirs.get(name), ours.get(name))
        for name in theirs.keys() | ours.keys()
        if theirs.get(name) != ours.get(name)
    }


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    if sys.argv[2] == "backends":
        print(json.dumps([allowed(tuple(capability), *case) for capability, *case in json.load(sys.stdin)]))
    else:
        print(json.dumps({name: differences(name) for name in MODELS}))
