"""The model families, and their conversion between Hugging Face and Megatron. Reading order:

name_map         rules and blocks: the declarative map, in pure numbers
families/layers  the Megatron parameters of each kind of layer, as rules
families/        llama, qwen3, qwen3_moe, nemotron_h: what each adds; family: which of them a config.json means
layout           whether a layout fits a model and its ranks, and the nearest that do
hf_image         one memory-mapped safetensors file that many processes fill
build, head      the Megatron model of this rank
conversion       import and export: copies the blocks of a map

Everything up to `layout` works without torch, so that a launcher can check a layout or count parameters. Names from the
other modules are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.settings import check_world
from cascade_rl.engine.models.families.family import Family, family_of
from cascade_rl.engine.models.hf_config import HfConfig, read_config
from cascade_rl.engine.models.layout import check_layout

if TYPE_CHECKING:
    from cascade_rl.engine.models.build import build_model, padded_vocab
    from cascade_rl.engine.models.conversion import export_hf, load_hf, write_hf
    from cascade_rl.engine.models.head import head_weight
    from cascade_rl.engine.models.hf_image import HfImage

__all__ = [
    "Family",
    "HfConfig",
    "HfImage",
    "build_model",
    "check_layout",
    "check_world",
    "export_hf",
    "family_of",
    "head_weight",
    "load_hf",
    "padded_vocab",
    "read_config",
    "write_hf",
]
_WITH_TORCH = {
    "HfImage": "hf_image",
    "build_model": "build",
    "export_hf": "conversion",
    "head_weight": "head",
    "load_hf": "conversion",
    "padded_vocab": "build",
    "write_hf": "conversion",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_WITH_TORCH[name]}"), name)
