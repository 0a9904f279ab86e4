"""Adapters as a folder in PEFT's form: adapter_config.json and adapter_model.safetensors, in float32.

Names and shapes are those of huggingface/peft@v0.17.0, src/peft/utils/save_and_load.py: `base_model.model.`, then the
name of the module in the Hugging Face checkpoint. So an expert's factors have its number in their names. transformers 5
has one parameter for all experts of a layer, where PEFT finds no modules of those names.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cascade_rl.engine.core.settings import LoraConfig
from cascade_rl.engine.lora.adapters import Lora
from cascade_rl.engine.lora.rules import factor_map, module_of
from cascade_rl.engine.models.conversion import whole_folder, write_image
from cascade_rl.engine.models.families.family import family_of
from cascade_rl.engine.models.hf_config import HfConfig
from cascade_rl.engine.models.hf_image import HfImage

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def export_adapters(lora: Lora, hf: HfConfig, folder: Path, base: str) -> None:
    """Writes `folder`; `base` is what adapter_config.json calls the base model. Collective, as `export_hf`: the folder
    appears complete or not at all."""
    tensors = factor_map(family_of(hf).name_map(hf), lora.config).hf_tensors()
    specs = {name: (torch.float32, tensor.shape) for name, tensor in tensors.items()}
    with whole_folder(folder) as partial:
        write_image(partial / WEIGHTS, specs, lora.factors())
        if dist.get_rank() == 0:
            HfImage.read(partial / WEIGHTS).sync()
            (partial / CONFIG).write_text(json.dumps(_config(lora.config, tensors, base), indent=2))


def _config(lora: LoraConfig, tensors: Any, base: str) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted({module_of(name.removesuffix(".weight")) for name in tensors}),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }
