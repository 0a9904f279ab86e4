"""What the layers of a card need is in its lock, and a stand-in for it is found."""

import ast
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cascade_rl.engine.backend.machine import CudaBackend, backend
from cascade_rl.engine.models.layer_spec import hybrid_stack_spec
from cascade_rl.launchers.card import installed
from cascade_rl.launchers.card.check import Unfit

LOCK = Path(__file__).parents[3] / "requirements" / "cuda.txt"
# What Megatron imports beside our layers' classes if it is there, and does without.
UNUSED = {
    "apex": "another norm: Transformer Engine has one",
    "flash_attn": "attention of inference alone",
    "flash_attn_3": "the same",
    "flash_mla": "the same",
    "flashattn_hopper": "the same",
    "flashinfer": "experts of inference alone",
    "flashinfer_cubin": "the same",
    "flashinfer_jit_cache": "the same",
    "fused_weight_gradient_mlp_cuda": "Apex's fusion of gradient accumulation, which the backend switches off",
}
OURS = {"megatron", "torch", "triton", "packaging"} | sys.stdlib_module_names


def locked() -> set[str]:
    return {line.partition("==")[0] for line in LOCK.read_text().splitlines() if "==" in line}


def modules_of_the_layers() -> set[str]:
    """Megatron's modules that hold a class which the layer specs name on a card, or one that it is made from."""
    spec = hybrid_stack_spec(CudaBackend.spec_provider(None), qk_layernorm=True)  # type: ignore[arg-type]
    named = {base.__module__ for _, cls in installed.classes(spec) for base in getattr(cls, "__mro__", (type(cls),))}
    return {name for name in named if name.startswith("megatron.")} | {"megatron.core.extensions.transformer_engine"}


def imported_if_there(module: str) -> set[str]:
    """First names of what a module imports inside `try`."""
    found = find_spec(module)
    assert found is not None and found.origin is not None
    tries = [node for node in ast.walk(ast.parse(Path(found.origin).read_text())) if isinstance(node, ast.Try)]
    inside = [node for one in tries for part in one.body for node in ast.walk(part)]
    plain = {alias.name for node in inside if isinstance(node, ast.Import) for alias in node.names}
    return {
        name.partition(".")[0] for name in plain | {n.module or "" for n in inside if isinstance(n, ast.ImportFrom)}
    }


def test_whatever_the_layers_import_on_a_card_is_needed_or_known_to_be_unused():
    imported = set[str]().union(*map(imported_if_there, modules_of_the_layers()))
    needed = {name.partition(".")[0] for name in installed.NEEDED}
    assert needed <= imported
    assert imported - OURS - needed == UNUSED.keys()


def test_what_is_needed_is_in_the_lock():
    assert set(installed.NEEDED.values()) - locked() == set()


def test_a_package_that_does_not_load_is_told_with_what_builds_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(installed, "NEEDED", {"einops": "einops"})
    assert installed.packages() == "einops"
    monkeypatch.setattr(installed, "NEEDED", {"no_such_module": "no-such-distribution"})
    with pytest.raises(Unfit, match=r"expected no_such_module to import.*Build no-such-distribution.*PINS=cuda"):
        installed.packages()


def test_a_stand_in_among_the_layers_is_named(monkeypatch: pytest.MonkeyPatch):
    assert "classes at" in installed.layers()
    if find_spec("transformer_engine") is None:  # as on this machine; with it, nothing is a stand-in
        monkeypatch.setattr(type(backend()), "spec_provider", CudaBackend.spec_provider)
        with pytest.raises(Unfit, match=r"expected a class at mamba_layer.mixer.in_proj, found a stand-in"):
            installed.layers()
