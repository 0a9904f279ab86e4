"""Import and export: every rank copies the blocks of its own shards from or into memory-mapped HF tensors."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.models.build import RankModel, place_of_this_rank
from cascade_rl.engine.models.families.family import family_of
from cascade_rl.engine.models.head import SCALAR_HEAD
from cascade_rl.engine.models.hf_config import HfConfig, export_dtype, read_config
from cascade_rl.engine.models.hf_image import HfImage, TensorSpec, read_checkpoint
from cascade_rl.engine.models.name_map import NameMap, Shard, without_experts

CHAT_TEMPLATE = "chat_template.jinja"  # transformers and vLLM prefer it to the one in tokenizer_config.json
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    CHAT_TEMPLATE,
    "generation_config.json",
)
ADAPTERS = "adapters"  # name of the module of a model chunk that holds its low-rank adapters (engine/lora)
NAMED_PER_ERROR = 4


@torch.no_grad()
def load_hf(model: RankModel, folder: str | Path, *, vocab_size: int | None = None) -> None:
    """Reads this rank's shards from a Hugging Face model folder; padding rows become zero.

    vocab_size  that of the model, if it has only the first so many ids of the folder's

    Raises UserError before anything is loaded if tensors are missing, extra or misshapen; it names them.
    """
    name_map = family_of(hf := read_config(folder)).name_map(hf)
    images = read_checkpoint(folder)
    check_tensors({name: image.shape(name) for name, image in images.items()}, name_map, folder)
    if vocab_size:
        name_map = family_of(hf).name_map({**hf, "vocab_size": vocab_size})
    for shard, tensor in _bound_shards(model, name_map):
        if shard.parameter.rule.multiple > 1:
            tensor.zero_()
        for block in shard.blocks:
            source = images[block.hf_name].view(block.hf_name)
            tensor[block.shard_index].copy_(source[block.hf_index])


@torch.no_grad()
def write_hf(model: RankModel, hf: HfConfig, path: str | Path, beside_from: str | Path | None = None) -> None:
    """Writes all weights into a new `HfImage` at `path`. All ranks call it; it returns when all have written.

    Where several ranks hold the same numbers, one of them writes. Dtypes are those of `image_tensors`. What the model
    folder `beside_from` holds beside the model (`NameMap.beside`) is copied, bit for bit.
    """
    beside = {} if beside_from is None else _beside(hf, beside_from)
    write_image(path, image_tensors(hf), _bound_shards(model, family_of(hf).name_map(hf)), beside)


@torch.no_grad()
def write_image(
    path: str | Path,
    tensors: Mapping[str, TensorSpec],
    held: Iterable[tuple[Shard, Tensor]],
    beside: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Writes `tensors` into a new `HfImage` at `path`, from what each rank holds of them, and copies those `beside`.
    Collective, as `write_hf`."""
    if torch.distributed.get_rank() == 0:
        specs = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in beside.items()}
        created = HfImage.create(path, {**tensors, **specs})
        for name, tensor in beside.items():
            created.view(name).copy_(tensor)
    torch.distributed.barrier()
    image = HfImage.open(path)
    for shard, tensor in held:
        for block in shard.blocks if shard.exports else ():
            image.view(block.hf_name)[block.hf_index].copy_(tensor[block.shard_index])
    torch.distributed.barrier()


def _beside(hf: HfConfig, folder: str | Path) -> dict[str, Tensor]:
    prefixes = family_of(hf).name_map(hf).beside
    images = read_checkpoint(folder) if prefixes else {}
    return {name: image.view(name) for name, image in images.items() if name.startswith(prefixes)}


def image_tensors(hf: HfConfig) -> dict[str, TensorSpec]:
    """Dtype and shape of every exported tensor: the dtype of config.json, float32 for router biases."""
    dtype = getattr(torch, export_dtype(hf))
    tensors = family_of(hf).name_map(hf).hf_tensors()
    return {name: (torch.float32 if tensor.float32 else dtype, tensor.shape) for name, tensor in tensors.items()}


def export_hf(
    model: RankModel,
    hf: HfConfig,
    folder: str | Path,
    tokenizer_from: str | Path | None = None,
    chat_template: str | None = None,
    beside_from: str | Path | None = None,
) -> None:
    """Writes `folder`, loadable by transformers and vLLM: weights, config.json, tokenizer (a copy). `chat_template`, a
    template's text, replaces the tokenizer's; `beside_from` is as in `write_hf`.

    All ranks call it. The folder appears complete or not at all; an existing one is replaced.
    """
    with whole_folder(Path(folder)) as partial:
        write_hf(model, hf, partial / "model.safetensors", beside_from)
        if torch.distributed.get_rank() == 0:
            HfImage.read(partial / "model.safetensors").sync()
            (partial / "config.json").write_text(json.dumps(hf, indent=2))
            if tokenizer_from is not None:
                copy_tokenizer(Path(tokenizer_from), partial)
            if chat_template is not None:
                (partial / CHAT_TEMPLATE).write_text(chat_template)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder that all ranks write in the block, and that then takes the place of `folder`. Collective."""
    partial, first = folder.with_name(folder.name + ".partial"), torch.distributed.get_rank() == 0
    if first:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    yield partial
    if first:
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(partial, folder)
    torch.distributed.barrier()


def check_tensors(found: Mapping[str, tuple[int, ...]], name_map: NameMap, folder: str | Path) -> None:
    """Raises UserError that names the tensors of a checkpoint that are missing, extra or misshapen."""
    expected = {name: tensor.shape for name, tensor in name_map.hf_tensors().items()}
    shapes = {name: (expected[name], found[name]) for name in expected.keys() & found.keys()}
    problems = {
        "missing": sorted(expected.keys() - found.keys()),
        "extra": sorted(
            n for n in found.keys() - expected.keys() - name_map.optional if not n.startswith(name_map.beside)
        ),
        "misshapen": [f"{n} (expected {e}, found {f})" for n, (e, f) in sorted(shapes.items()) if e != f],
    }
    if any(problems.values()):
        told = "; ".join(f"{kind}: {_shorten(names)}" for kind, names in problems.items() if names)
        raise UserError(f"the weights in {folder} do not match its config.json: {told}. Take both from one model")


def _shorten(names: list[str]) -> str:
    rest = len(names) - NAMED_PER_ERROR
    return ", ".join(names[:NAMED_PER_ERROR]) + (f" and {rest} more" if rest > 0 else "")


def _bound_shards(model: RankModel, name_map: NameMap) -> Iterator[tuple[Shard, Tensor]]:
    """Each shard of this rank with the model's tensor that holds it.

    Raises UserError if the model is not the one that the map describes.
    """
    tensors = {name: tensor for name, tensor in model.state_dict().items() if torch.is_tensor(tensor)}
    place = place_of_this_rank()
    if not name_map.experts:
        place = without_experts(place)
    shards = {shard.name: shard for shard in name_map.shards(place)}
    expected = {name: shard.shape for name, shard in shards.items()}
    beside = ("_extra_state", SCALAR_HEAD)
    own = {name: tensor for name, tensor in tensors.items() if not (name.endswith(beside) or of_adapter(name))}
    found = {name: tuple(tensor.shape) for name, tensor in own.items()}
    if expected != found:
        differing = sorted(dict(expected.items() ^ found.items()))
        raise UserError(f"config.json and the model that was built differ in {_shorten(differing)}")
    return ((shard, tensors[name]) for name, shard in shards.items())


def of_adapter(name: str) -> bool:
    """Whether a tensor of a model is a factor of a low-rank adapter."""
    return ADAPTERS in name.split(".")


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copies what a model folder holds besides weights and config.json: tokenizer, chat template, sampling defaults."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy(source / name, target)
