"""Makes a dense model a mixture of experts that computes the same: sparse upcycling (arXiv 2212.05055).

Every expert is a copy of the dense MLP, and the weights of a token's top k experts are renormalised to sum to one, so
that whichever experts a token gets, their weighted sum is the dense output. Nothing has to be scaled, as it must be
where the weights are not renormalised or the experts are slices of the MLP (arXiv 2410.07524).

The copies diverge because the gates are random: each expert sees different tokens, so that already its first gradient
differs. The gates themselves have no gradient, except for rounding, while the experts of a token are equal: any weights
that sum to one give the same output. They start to learn once the experts differ. With k = 1 the only weight is always
1 and the gates would never learn, so this is refused.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.models.conversion import check_tensors, copy_tokenizer, image_tensors
from cascade_rl.engine.models.families.family import family_of
from cascade_rl.engine.models.hf_config import HfConfig, read, read_config
from cascade_rl.engine.models.hf_image import HfImage, read_checkpoint

DENSE, SPARSE = "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"


def upcycle(dense: Path, out: Path, *, experts: int, topk: int, seed: int = 1) -> None:
    """Reads a Qwen3 folder, writes a Qwen3-MoE folder: weights, config.json, tokenizer. Needs memory for one tensor.

    The dtype is that of the dense config.json. Gates are sampled with `seed` from a normal distribution whose standard
    deviation is its initializer_range. The folder appears complete or not at all.

    Raises UserError for another family, a folder `out` that exists, or a topk that is not in 2 .. experts.
    """
    dense_config = read_config(dense)
    _check(dense_config, out, experts, topk)
    images = read_checkpoint(dense)
    check_tensors(
        {n: image.shape(n) for n, image in images.items()}, family_of(dense_config).name_map(dense_config), dense
    )
    config = sparse_config(dense_config, experts, topk)
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _write(images, config, partial / "model.safetensors", seed)
    (partial / "config.json").write_text(json.dumps(config, indent=2))
    copy_tokenizer(dense, partial)
    os.rename(partial, out)


def sparse_config(dense: HfConfig, experts: int, topk: int) -> HfConfig:
    """config.json of the mixture: what the dense one says, and the experts."""
    return dense | {
        "architectures": [SPARSE],
        "model_type": "qwen3_moe",
        "num_experts": experts,
        "num_experts_per_tok": topk,
        "moe_intermediate_size": read(dense, "intermediate_size"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "output_router_logits": False,
    }


def _check(config: HfConfig, out: Path, experts: int, topk: int) -> None:
    if (found := family_of(config).architecture) != DENSE:
        raise UserError(f"upcycling starts from a {DENSE}; config.json has {found}")
    if not 2 <= topk <= experts:
        raise UserError(
            f"expected 2 <= topk <= experts, found topk = {topk}, experts = {experts}: with one expert per token its "
            "renormalised weight is always 1 and the router cannot learn"
        )
    if out.exists():
        raise UserError(f"{out} exists: remove it, or name another folder")


@torch.no_grad()
def _write(images: dict[str, HfImage], config: HfConfig, path: Path, seed: int) -> None:
    tensors = image_tensors(config)
    image, generator = HfImage.create(path, tensors), torch.Generator().manual_seed(seed)
    for name in sorted(tensors):
        target = image.view(name)
        if name.endswith(".mlp.gate.weight"):
            target.copy_(_gate(target.shape, config, generator))
        else:
            source = re.sub(r"\.experts\.\d+\.", ".", name)
            target.copy_(images[source].view(source))
    image.sync()


def _gate(shape: tuple[int, ...], config: dict[str, Any], generator: torch.Generator) -> Tensor:
    """A random gate, float32 [experts, hidden]."""
    return torch.randn(shape, generator=generator) * config.get("initializer_range", 0.02)
