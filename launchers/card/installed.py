"""Checks that what our layers are made of on a card is installed and loads beside the installed torch."""

import importlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import NonCallableMock

from cascade_rl.engine.backend.machine import backend
from cascade_rl.engine.models.layer_spec import hybrid_stack_spec
from cascade_rl.launchers.card.check import Unfit

# Import name and distribution of what Megatron imports for the classes of the layer specs. Where one does not import,
# Megatron goes on with stand-ins, and fails when the first layer is built.
NEEDED = {
    "transformer_engine.pytorch": "transformer-engine-torch",
    "mamba_ssm": "mamba-ssm",
    "causal_conv1d": "causal-conv1d",
    "einops": "einops",
    "fla.ops.gated_delta_rule": "flash-linear-attention",
}


def packages() -> str:
    """Raises Unfit for one that does not import."""
    for module, distribution in NEEDED.items():
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:  # OSError: a library that it is linked with does not load
            raise Unfit(
                f"expected {module} to import, found: {error}. Build {distribution} against the installed torch: "
                "`make setup PINS=cuda` (docs/gpu.md, Install)"
            ) from error
    return ", ".join(NEEDED.values())


def layers() -> str:
    """Raises Unfit for a class of the layer specs for which Megatron has a stand-in."""
    named = dict(classes(hybrid_stack_spec(backend().spec_provider(), qk_layernorm=True)))
    for place, cls in named.items():
        if isinstance(cls, NonCallableMock):
            raise Unfit(f"expected a class at {place}, found a stand-in: what it comes from does not import here")
    return f"{len(set(map(id, named.values())))} classes at {len(named)} places"


def classes(spec: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Place and class of whatever a layer spec names; nested specs, partials and submodules opened."""
    if hasattr(spec, "func"):
        yield place, spec.func
        yield from classes(spec.keywords.get("submodules"), place)
    elif hasattr(spec, "module") and hasattr(spec, "submodules"):
        yield place, spec.module
        yield from classes(spec.submodules, place)
    elif hasattr(spec, "__dataclass_fields__"):
        for name in spec.__dataclass_fields__:
            yield from classes(getattr(spec, name), f"{place}.{name}".lstrip("."))
    elif callable(spec):
        yield place, spec
