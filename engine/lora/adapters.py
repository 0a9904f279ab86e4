"""Low-rank adapters of a trainer. Every weight that has one holds W0 + scale B A itself, in its own dtype.

So the forward pass is that of full training, on any backend and in any layout, and the engine samples from the very
weights that the trainer computes with: an adapter beside its layer, y = W0 x + scale B (A x), would round otherwise
than the sum that is refitted. After each optimizer step the weights are made again from W0, which is kept, so rounding
does not add up (merge.py).

Backward gives the gradient of a weight, and at once its factors' part of it, then forgets it:

    dB = scale dW A^T        dA = scale B^T dW

Factors, their gradients and Adam's moments are float32.
"""

import math
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from cascade_rl.engine.backend.kept_tensors import KeptTensors
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import LoraConfig, ParallelConfig
from cascade_rl.engine.lora.merge import merged
from cascade_rl.engine.lora.rules import AdapterShard, adapter_shards, check_lora
from cascade_rl.engine.models.build import RankModel, chunks_of, place_of_this_rank
from cascade_rl.engine.models.conversion import ADAPTERS
from cascade_rl.engine.models.families.family import family_of
from cascade_rl.engine.models.hf_config import HfConfig
from cascade_rl.engine.models.name_map import Cut, Place, Shard


class Adapter(torch.nn.Module):
    """The factors of one weight: `a` float32 [tensors x rank, inputs], `b` float32 [outputs, rank], this rank's part.

    A begins as in PEFT, uniform within 1 / sqrt(inputs), by the seed and its name: the same numbers in any layout. B
    begins at 0.
    """

    def __init__(self, weight: torch.nn.Parameter, shard: AdapterShard, config: LoraConfig, place: Place, seed: int):
        super().__init__()
        self.shard, self.place, self.scale = shard, place, config.scale
        self._weight = (weight,)  # in a tuple it is no parameter of this module
        self.a = torch.nn.Parameter(_initial(shard.a, seed))
        self.b = torch.nn.Parameter(torch.zeros(shard.b.shape))
        for parameter, own in ((self.a, shard.a), (self.b, shard.b)):
            self._mark(parameter, own)

    @property
    def weight(self) -> torch.nn.Parameter:
        return self._weight[0]

    @property
    def split(self) -> Cut:
        """Over the ranks that share the weight."""
        return getattr(self.place, self.shard.over)

    def whole_factor(self) -> torch.nn.Parameter:
        """The one that every rank that shares the weight has, with its own part of the gradient."""
        return self.b if self.shard.a.parameter.rule.over else self.a

    def merge(self, base: Tensor) -> None:
        """Sets the weight, given W0. Rounded once."""
        merge_shard(self.weight, base, self.shard, self.a, self.b, self.scale)

    @torch.no_grad()
    def take_gradient(self, weight: torch.nn.Parameter) -> None:
        """Adds what the weight's gradient is for the factors, and drops it."""
        assert weight.grad is not None
        gradient, weight.grad = weight.grad.float(), None
        for rows, a in _by_tensor(self.shard, self.a):
            own = gradient[rows]
            _sum_of_gradients(self.b)[rows] += self.scale * (own @ self.a[a].T)
            _sum_of_gradients(self.a)[a] += self.scale * (self.b[rows].T @ own)

    def _mark(self, parameter: torch.nn.Parameter, own: Shard) -> None:
        """By these attributes Megatron knows over which ranks to reduce a gradient, and which ranks count its norm."""
        is_copy = own.parameter.rule.over is None and self.split.rank > 0
        marks = {"allreduce": getattr(self.weight, "allreduce", True), "tensor_model_parallel": True, "shared": is_copy}
        for name, mark in marks.items():
            setattr(parameter, name, mark)

    def stored(self) -> Iterator[tuple[str, ShardedTensorFactory]]:
        """What a checkpoint holds, under PEFT's names and in the shapes of the whole: readable in any layout."""
        for name, parameter, own in (("a", self.a, self.shard.a), ("b", self.b, self.shard.b)):
            yield name, _stored(own, parameter, self._replica(own))

    def _replica(self, own: Shard) -> tuple[int, int, int]:
        data = self.place.data if own.parameter.expert is None else self.place.expert_data
        return 0, 0 if own.parameter.rule.over else self.split.rank, data.rank


class ChunkAdapters(torch.nn.ModuleList):
    """Those of a model chunk, as its module `ADAPTERS`."""

    def sharded_state_dict(self, prefix: str = "", *_: Any, **__: Any) -> dict[str, ShardedTensorFactory]:
        adapters: list[Adapter] = list(self)  # type: ignore[arg-type]
        return {
            f"{prefix}{number}.{name}": factory
            for number, adapter in enumerate(adapters)
            for name, factory in adapter.stored()
        }


class Lora:
    """The adapters of this rank's model. Its other parameters are frozen.

    Made before DDP and the optimizer, which then see only the factors; `open` follows them.
    Raises UserError as `check_lora` does, or for a pipeline stage without an adapter.
    """

    base: KeptTensors

    def __init__(self, model: RankModel, hf: HfConfig, config: LoraConfig, parallel: ParallelConfig, seed: int) -> None:
        name_map = family_of(hf).name_map(hf)
        check_lora(name_map, config, parallel)
        self.config, self._on_host = config, parallel.offload_reference
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        place, weights = place_of_this_rank(), dict(model.named_parameters())
        shards = adapter_shards(name_map, config, place)
        made = {shard.weight.name: Adapter(weights[shard.weight.name], shard, config, place, seed) for shard in shards}
        self.adapters = list(made.values())
        for chunk in chunks_of(model):
            own = [made[name] for name in _names_in(model, chunk) if name in made]
            _require_some(own)
            setattr(chunk, ADAPTERS, ChunkAdapters(own))
            if chunk.pre_process:
                chunk.embedding.register_forward_hook(_with_gradient)

    def open(self) -> None:
        """Begins to take gradients, and keeps the weights of now as the base."""
        self.base = KeptTensors([adapter.weight for adapter in self.adapters], on_host=self._on_host)
        for adapter in self.adapters:
            adapter.weight.requires_grad_(True)
            adapter.weight.register_post_accumulate_grad_hook(adapter.take_gradient)

    def rebase(self) -> None:
        """The weights of now, which have just been loaded, are the base."""
        self.base.renew()
        self.merge()

    def merge(self) -> None:
        """Sets all weights from the base and the factors of now."""
        for adapter, base in zip(self.adapters, self.base.tensors, strict=True):
            adapter.merge(base)

    def sum_whole_factors(self) -> None:
        """Sums their gradients over the ranks that share a weight. After the sums over data parallel ranks, as
        Megatron does for norms under sequence parallelism."""
        by_dimension: dict[str, list[Tensor]] = {}
        for adapter in self.adapters:
            if adapter.split.size > 1:
                by_dimension.setdefault(adapter.shard.over, []).append(_sum_of_gradients(adapter.whole_factor()))
        for over, gradients in by_dimension.items():
            flat = _flatten_dense_tensors(gradients)
            dist.all_reduce(flat, group=_GROUPS[over]())
            for gradient, total in zip(gradients, _unflatten_dense_tensors(flat, gradients), strict=True):
                gradient.copy_(total)

    def factors(self) -> Iterator[tuple[Shard, Tensor]]:
        """Each factor's part on this rank."""
        return chain.from_iterable(((one.shard.a, one.a), (one.shard.b, one.b)) for one in self.adapters)


@torch.no_grad()
def merge_shard(weight: Tensor, base: Tensor, shard: AdapterShard, a: Tensor, b: Tensor, scale: float) -> None:
    """Sets this rank's part of a weight from W0, which may be the weight itself, and its factors, wherever they are."""
    base, a, b = (tensor.to(weight.device) for tensor in (base, a, b))
    for rows, own in _by_tensor(shard, a):
        weight[rows] = merged(base[rows], b[rows], a[own], scale)


def _by_tensor(shard: AdapterShard, a: Tensor) -> Iterator[tuple[Tensor | slice, slice]]:
    """For each HF tensor of a weight, its rows in B and in the stack of A."""
    rank = len(a) // len(shard.tensors)
    for number, runs in enumerate(shard.rows()):
        own = slice(number * rank, (number + 1) * rank)
        if len(runs) == 1:
            yield runs[0], own
        elif runs:
            yield torch.cat([torch.arange(run.start, run.stop, device=a.device) for run in runs]), own


_GROUPS = {
    "tensor": parallel_state.get_tensor_model_parallel_group,
    "expert_tensor": parallel_state.get_expert_tensor_parallel_group,
}


def _sum_of_gradients(factor: Any) -> Tensor:
    """In the buffer of Megatron's DDP, float32."""
    return factor.main_grad


def _names_in(model: RankModel, chunk: torch.nn.Module) -> Iterator[str]:
    """The names in the whole model of a chunk's parameters."""
    own = {id(parameter) for parameter in chunk.parameters()}
    return (name for name, parameter in model.named_parameters() if id(parameter) in own)


def _require_some(adapters: Sequence[Adapter]) -> None:
    if not adapters:
        raise UserError(
            "lora.targets: expected an adapter on each pipeline stage, whose ranks would otherwise train nothing; "
            "found a stage without one. Name more targets, or lower `pipeline`."
        )


def _with_gradient(_module: torch.nn.Module, _inputs: tuple, output: Tensor) -> None:
    """A layer whose input needs no gradient would lose its weights' gradients in a recompute."""
    if torch.is_grad_enabled():
        output.requires_grad_(True)


def _initial(shard: Shard, seed: int) -> Tensor:
    initial = torch.zeros(shard.shape)
    for name, shape in shard.parameter.rule.hf_shapes().items():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
        bound = 1 / math.sqrt(shape[1])
        whole = torch.empty(shape).uniform_(-bound, bound, generator=generator)
        for block in shard.blocks:
            if block.hf_name == name:
                initial[block.shard_index] = whole[block.hf_index]
    return initial


def _stored(shard: Shard, parameter: torch.nn.Parameter, replica: tuple[int, int, int]) -> ShardedTensorFactory:
    """The blocks of a factor, each a box of the tensor that PEFT would save."""
    shapes = shard.parameter.rule.hf_shapes()

    def build(_key: str, data: Tensor, replica_id: tuple, _flattened: slice | None) -> dict[str, ShardedTensor]:
        boxes = {}
        for number, block in enumerate(shard.blocks):
            part = data[block.shard_index]
            offset = tuple(axis.start for axis in block.hf_index)
            boxes[str(number)] = ShardedTensor(
                block.hf_name,
                part,
                part.dtype,
                tuple(part.shape),
                shapes[block.hf_name],
                offset,
                axis_fragmentations=None,
                replica_id=replica_id,
            )
        return boxes

    def merge(boxes: dict[str, Tensor]) -> Tensor:
        whole = torch.empty(shard.shape)
        for number, block in enumerate(shard.blocks):
            whole[block.shard_index] = boxes[str(number)]
        return whole

    return ShardedTensorFactory(shard.name, parameter, build, merge, replica)
