"""Adapters as a folder in PEFT's form: adapter_config.json and adapter_model.safetensors, in float32.

Names and shapes are those of huggingface/peft@v0.17.0, src/peft/utils/save_and_load.py: `base_model.model.`, then the
name of the module in the Hugging Face checkpoint. So an expert's factors have its number in their names. transformers 5
has one parameter for all experts of a layer, where PEFT finds no modules of those names.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from cascade_rl.engine.lora.adapters import Lora
from cascade_rl.engine.lora.peft_config import CONFIG, WEIGHTS, peft_config, read_peft
from cascade_rl.engine.lora.rules import AdapterShard, adapter_shards, factor_map, module_of, with_partners
from cascade_rl.engine.models.build import place_of_this_rank
from cascade_rl.engine.models.conversion import check_tensors, whole_folder, write_image
from cascade_rl.engine.models.families.family import family_of
from cascade_rl.engine.models.hf_config import HfConfig
from cascade_rl.engine.models.hf_image import HfImage
from cascade_rl.engine.models.name_map import Shard, without_experts


def export_adapters(lora: Lora, hf: HfConfig, folder: Path, base: str) -> None:
    """Writes `folder`; `base` is what adapter_config.json calls the base model. Collective, as `export_hf`: the folder
    appears complete or not at all."""
    tensors = factor_map(family_of(hf).name_map(hf), lora.config).hf_tensors()
    specs = {name: (torch.float32, tensor.shape) for name, tensor in tensors.items()}
    modules = set(map(_module, tensors))
    with whole_folder(folder) as partial:
        write_image(partial / WEIGHTS, specs, lora.factors())
        if dist.get_rank() == 0:
            HfImage.read(partial / WEIGHTS).sync()
            (partial / CONFIG).write_text(json.dumps(peft_config(lora.config, modules, base), indent=2))


def read_factors(folder: Path, hf: HfConfig) -> Iterator[tuple[AdapterShard, Tensor, Tensor]]:
    """Of an adapter on the model `hf`: each of its weights on this rank, A and B, float32 in host memory, and zeros for
    parts of a weight that have no factors.

    Raises UserError as `read_peft` and `factor_map` do, or if tensors are missing, extra or misshapen.
    """
    lora, name_map, image = read_peft(folder), family_of(hf).name_map(hf), HfImage.read(folder / WEIGHTS)
    whole = with_partners(name_map, lora)
    factors = factor_map(name_map, whole)
    found = {name: image.shape(name) for name in image}
    zeros = {name: each.shape for name, each in factors.hf_tensors().items() if _module(name) not in lora.targets}
    check_tensors(zeros | found, factors, folder)
    place = place_of_this_rank()
    for shard in adapter_shards(name_map, whole, place if name_map.experts else without_experts(place)):
        yield shard, _read(shard.a, image), _read(shard.b, image)


def _read(shard: Shard, image: HfImage) -> Tensor:
    factor, there = torch.zeros(shard.shape), set(image)
    for block in shard.blocks:
        if block.hf_name in there:
            factor[block.shard_index] = image.view(block.hf_name)[block.hf_index].float()
    return factor


def _module(factor: str) -> str:
    """The module whose factor it is."""
    return module_of(factor.removesuffix(".weight"))
