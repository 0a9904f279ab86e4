"""The settings of an adapter in PEFT's form: adapter_config.json. Works without torch, before a launch.

Names are those of huggingface/peft@v0.17.0, src/peft/tuners/lora/config.py.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import LoraConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# fields that make another model of the same factors, and the values with which they do not
PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "fan_in_fan_out": (False, None),
    "use_rslora": (False, None),
    "use_dora": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
}


def peft_config(lora: LoraConfig, modules: Collection[str], base: str) -> dict[str, Any]:
    """What the file says of an adapter of `modules`. `base` is what it calls the base model."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(modules),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def has_base(folder: Path) -> bool:
    """Whether there is an adapter, and its base where it says."""
    return is_adapter(folder) and (_base(folder) / "config.json").is_file()


def whole_model(folder: Path) -> Path:
    """The Hugging Face folder of a model that has all weights: `folder`, or that of the base of the adapter there.
    Raises UserError if the base is not at hand."""
    if not is_adapter(folder):
        return folder
    if not has_base(folder):
        raise UserError(
            f"{folder / CONFIG}: expected a folder with a config.json in base_model_name_or_path, found "
            f"'{_base(folder)}'. Write there where the base model is"
        )
    return _base(folder)


def read_peft(folder: Path) -> LoraConfig:
    """Raises UserError for an adapter that is more than one pair of factors for each matrix."""
    found = _read(folder)
    for name, allowed in PLAIN.items():
        if name in found and found[name] not in allowed:
            raise UserError(
                f"{folder / CONFIG}: expected a plain low-rank adapter ({name} = {allowed[0]}), found {name} = "
                f"{found[name]}. Merge it into its base with PEFT (merge_and_unload), and use the merged model"
            )
    return LoraConfig(found["r"], found["lora_alpha"], tuple(found["target_modules"]))


def _base(folder: Path) -> Path:
    return Path(str(_read(folder).get("base_model_name_or_path")))


def _read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / CONFIG).read_text())
