"""The declarative map between Hugging Face and Megatron tensors, in pure numbers: no torch, no process group.

A `NameMap` lists the Megatron parameters of a whole model, each with a `Rule`: the pieces of HF tensors that it is
made of, and the axis and the parallel dimension along which it is split. A rule and the `Place` of a rank
give `Block`s: a rectangle of an HF tensor and the equal rectangle of that rank's shard. Import copies blocks
in, export copies them out, and a refit between two layouts is the intersection of their blocks. Nothing else
knows how a tensor is split.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Literal

from cascade_rl.engine.core.errors import UserError

Index = tuple[slice, ...]
Shape = tuple[int, ...]

# the same under any layout, so that a checkpoint keeps its shapes when the layout changes
VOCABULARY_MULTIPLE = 128
# so that 8 tensor parallel ranks hold whole column groups of the log-prob kernels (kernels/runtime/configs.py)
LARGE_VOCABULARY, LARGE_VOCABULARY_MULTIPLE = 32768, 2048


@dataclass(frozen=True)
class Block:
    """`hf_tensor[hf_index]` and `shard[shard_index]` hold the same numbers."""

    hf_name: str
    hf_index: Index
    shard_index: Index


@dataclass(frozen=True)
class Part:
    """`count` pieces of an HF tensor along the split axis, each `width` long, from `start` on.

    A piece must stay whole on a rank. `pieces` says what it is: a head, a state group, one channel. They begin `stride`
    apart, if the tensor has something else between them, and otherwise one behind the other.
    """

    hf_name: str
    count: int
    width: int = 1
    start: int = 0
    pieces: str = "channels"
    stride: int | None = None

    @property
    def length(self) -> int:
        return self.count * self.width

    @property
    def end(self) -> int:
        """In the HF tensor."""
        return self.start + (self.length if self.stride is None else self.stride * (self.count - 1) + self.width)

    def runs(self, unit: int, units: int) -> Iterator[tuple[int, int]]:
        """Start and length in the HF tensor of what lies together in the share `unit` of `units`."""
        if self.stride is None:
            yield self.start + unit * (self.length // units), self.length // units
        else:
            share = self.count // units
            yield from (
                (self.start + piece * self.stride, self.width) for piece in range(unit * share, (unit + 1) * share)
            )


@dataclass(frozen=True)
class Rule:
    """The layout of one Megatron parameter.

    Along `axis` the parameter is a row of units, and each unit holds the next share of every part in turn.
    Rank r of n along the parallel dimension `over` holds the r-th of n equal stretches of that row. `units`
    is a number where Megatron interleaves (one unit per key/value head) and None where each rank's stretch is
    one unit (gate and up; z, x, B, C and dt). `others` are the lengths of the axes that are never split. A
    `multiple` above 1 pads the row with entries that no HF tensor has.
    """

    parts: tuple[Part, ...]
    others: Shape = ()
    axis: int = 0
    over: Literal["tensor", "expert_tensor"] | None = None
    units: int | None = None
    multiple: int = 1

    def hf_shapes(self) -> dict[str, Shape]:
        """Shapes of the HF tensors that the parts belong to."""
        lengths: dict[str, int] = {}
        for part in self.parts:
            lengths[part.hf_name] = max(lengths.get(part.hf_name, 0), part.end)
        return {name: self._insert(length, self.others) for name, length in lengths.items()}

    def shard_shape(self, size: int) -> Shape:
        """Shape of the shard on each of the `size` ranks over which the parameter is split."""
        return self._insert(self._stretch(size), self.others)

    def blocks(self, rank: int, size: int) -> tuple[Block, ...]:
        """What rank `rank` of `size` holds. Padding is in no block."""
        low, high = rank * self._stretch(size), (rank + 1) * self._stretch(size)
        return tuple(
            self._block(hf_name, hf_start + max(low - start, 0), max(start - low, 0), length)
            for hf_name, hf_start, start, end in self._segments(size)
            if (length := min(end, high) - max(start, low)) > 0
        )

    def broken_part(self, size: int) -> Part | None:
        """The first part whose pieces `size` ranks would have to break, or None.

        There may be fewer interleaved units than ranks. Megatron then gathers the key/value heads, which follow the
        queries, at run time.
        """
        if self.multiple > 1:
            return None
        for position, part in enumerate(self.parts):
            gathered = self.units is not None and position > 0 and size % part.count == 0
            if part.count % size and not gathered:
                return part
        return None

    def _segments(self, size: int) -> Iterator[tuple[str, int, int, int]]:
        """(HF tensor, start in it, start and end in the whole parameter), in Megatron's order."""
        units, position = self.units or size, 0
        for unit in range(units):
            for part in self.parts:
                for start, length in part.runs(unit, units):
                    yield part.hf_name, start, position, position + length
                    position += length

    def _stretch(self, size: int) -> int:
        length = sum(part.length for part in self.parts)
        if self.multiple > 1:
            multiple = math.lcm(self.multiple, size)
            length = math.ceil(length / multiple) * multiple
        return length // size

    def _block(self, hf_name: str, hf_start: int, shard_start: int, length: int) -> Block:
        whole = tuple(slice(0, other) for other in self.others)
        hf, shard = slice(hf_start, hf_start + length), slice(shard_start, shard_start + length)
        return Block(hf_name, self._insert(hf, whole), self._insert(shard, whole))

    def _insert[T](self, along_axis: T, others: tuple[T, ...]) -> tuple[T, ...]:
        return (*others[: self.axis], along_axis, *others[self.axis :])


def replicated(hf_name: str, *shape: int) -> Rule:
    """The whole HF tensor on every rank."""
    return Rule((Part(hf_name, shape[0]),), shape[1:])


def column(*parts: Part, others: Shape = (), over: Literal["tensor", "expert_tensor"] = "tensor") -> Rule:
    """Split along the output axis; every rank holds its share of each part, one after another."""
    return Rule(parts, others, over=over)


def row(part: Part, outputs: int, over: Literal["tensor", "expert_tensor"] = "tensor") -> Rule:
    """[outputs, inputs], split along the inputs."""
    return Rule((part,), (outputs,), axis=1, over=over)


def interleaved(*parts: Part, units: int, others: Shape) -> Rule:
    """Queries, keys and values: for each key/value head its query heads, the key head, the value head."""
    return Rule(parts, others, over="tensor", units=units)


def vocabulary(hf_name: str, size: int, hidden: int) -> Rule:
    """[vocabulary, hidden], padded and split along the vocabulary."""
    multiple = LARGE_VOCABULARY_MULTIPLE if size >= LARGE_VOCABULARY else VOCABULARY_MULTIPLE
    return Rule((Part(hf_name, size),), (hidden,), over="tensor", units=1, multiple=multiple)


@dataclass(frozen=True)
class Cut:
    """One rank's position along one parallel dimension."""

    rank: int = 0
    size: int = 1


@dataclass(frozen=True)
class Place:
    """The position of a rank. Plain numbers: a plan can be made for the ranks of another process, or of none.

    virtual_pipeline and pipeline_layers are those of `ParallelConfig`. Context parallel ranks hold the same
    weights and count as `data`.
    """

    tensor: Cut = Cut()
    pipeline: Cut = Cut()
    virtual_pipeline: int = 1
    pipeline_layers: tuple[int, ...] | None = None
    expert: Cut = Cut()
    expert_tensor: Cut = Cut()
    data: Cut = Cut()
    expert_data: Cut = Cut()


def without_experts(place: Place) -> Place:
    """For a teacher that has none, on ranks that are cut for a student with some."""
    return replace(place, expert=Cut())


@dataclass(frozen=True)
class Parameter:
    """One parameter (or persistent buffer) of the whole Megatron model.

    name     with `{layer}` and `{expert}` for the indices: those below are global, those of a rank are local
    layer    the layer it belongs to; what comes before or after the layers belongs to the first or the last
    expert   the routed expert it belongs to, if any
    float32  kept and exported in float32 whatever the model's dtype
    tied     a copy of the embedding that the last of several pipeline stages keeps; read but never exported
    """

    name: str
    rule: Rule
    layer: int
    expert: int | None = None
    float32: bool = False
    tied: bool = False

    def __str__(self) -> str:
        return self.name.format(layer=self.layer, expert=self.expert)


@dataclass(frozen=True)
class Shard:
    """What one rank holds of one parameter.

    name     this rank's Megatron name, with local indices; prefixed with its model chunk if the rank has several
    exports  of all ranks that hold the same numbers, this is the one that writes them
    """

    name: str
    parameter: Parameter
    shape: Shape
    blocks: tuple[Block, ...]
    exports: bool


@dataclass(frozen=True)
class HfTensor:
    """What config.json alone says about a checkpoint's tensor."""

    shape: Shape
    float32: bool


def equal_ranges(total: int, count: int) -> list[range]:
    """0 .. total in `count` ranges whose lengths differ by at most one: pipeline stages, the experts of a rank."""
    return [range(i * total // count, (i + 1) * total // count) for i in range(count)]


def stage_layers(total: int, stages: int, pipeline_layers: tuple[int, ...] | None) -> list[range]:
    """The layers of each pipeline stage, in the model's order."""
    if pipeline_layers is None:
        return equal_ranges(total, stages)
    ends = list(accumulate(pipeline_layers))
    return [range(end - length, end) for length, end in zip(pipeline_layers, ends, strict=True)]


@dataclass(frozen=True)
class NameMap:
    """All parameters of a model.

    optional  HF tensors that a checkpoint may lack: a tied head
    beside    prefixes of HF tensors that are no part of the model, and pass through as they are: heads that predict
              further tokens (MTP)
    """

    parameters: tuple[Parameter, ...]
    layers: int
    experts: int
    optional: frozenset[str] = frozenset()
    beside: tuple[str, ...] = ()

    def hf_tensors(self) -> dict[str, HfTensor]:
        """Every tensor of the HF checkpoint."""
        return {
            name: HfTensor(shape, parameter.float32)
            for parameter in self.parameters
            for name, shape in parameter.rule.hf_shapes().items()
        }

    def parameter_count(self) -> int:
        """Number of weights in the whole model, without padding; tied weights count once."""
        return sum(math.prod(tensor.shape) for tensor in self.hf_tensors().values())

    def check(self, place: Place) -> None:
        """Raises UserError if the layout of `place` does not divide the model; it names the first such tensor."""
        self._check_stages(place)
        if place.expert.size > 1 and (not self.experts or self.experts % place.expert.size):
            needed = f"divide the {self.experts} experts" if self.experts else "be 1 in a model without experts"
            raise UserError(f"expert parallel size must {needed}; found {place.expert.size}: change `expert`")
        for parameter in self._cut_alike:
            self._check_cut(parameter, place)

    def chunks(self, place: Place) -> list[range]:
        """The layers of each model chunk of the rank at `place`, which holds every `pipeline`-th stage."""
        stages = place.pipeline.size * place.virtual_pipeline
        return stage_layers(self.layers, stages, place.pipeline_layers)[place.pipeline.rank :: place.pipeline.size]

    def shards(self, place: Place) -> list[Shard]:
        """What the rank at `place` holds. Raises UserError if the layout does not divide the model."""
        self.check(place)
        experts = equal_ranges(self.experts, place.expert.size)[place.expert.rank]
        return [
            _shard(parameter, place, chunk, layers.start, experts.start)
            for chunk, layers in enumerate(self.chunks(place))
            for parameter in self.parameters
            if parameter.layer in layers
            and (parameter.expert is None or parameter.expert in experts)
            and not (parameter.tied and place.pipeline.size == 1)
        ]

    @cached_property
    def _cut_alike(self) -> list[Parameter]:
        """One parameter for each set of numbers that limits a split: most layers and experts are alike."""
        alike: dict[tuple, Parameter] = {}
        for parameter in self.parameters:
            rule = parameter.rule
            numbers = ((part.count, part.pieces) for part in rule.parts)
            alike.setdefault((rule.over, rule.units, rule.multiple, *numbers), parameter)
        return list(alike.values())

    def _check_stages(self, place: Place) -> None:
        stages, layers = place.pipeline.size * place.virtual_pipeline, place.pipeline_layers
        if stages > self.layers:
            raise UserError(
                f"pipeline parallel size must be at most {self.layers}, one layer per stage; found {stages} stages "
                f"(pipeline {place.pipeline.size} x virtual_pipeline {place.virtual_pipeline}): lower `pipeline`"
            )
        if place.virtual_pipeline > 1 and place.pipeline.size == 1:
            raise UserError(
                f"virtual_pipeline = {place.virtual_pipeline} interleaves the stages of several ranks; found "
                "pipeline = 1: raise `pipeline`, or leave out `virtual_pipeline`"
            )
        if layers and (len(layers) != stages or sum(layers) != self.layers or min(layers) < 1):
            raise UserError(
                f"pipeline_layers must be {stages} numbers from 1 on whose sum is {self.layers}, the layers of the "
                f"model; found {layers}, whose sum is {sum(layers)}: change `pipeline_layers`"
            )

    def _check_cut(self, parameter: Parameter, place: Place) -> None:
        over = parameter.rule.over
        if over is None:
            return
        cut: Cut = getattr(place, over)
        if part := parameter.rule.broken_part(cut.size):
            fit = "divide, or be a multiple of," if part.pieces == "key/value heads" else "divide"
            raise UserError(
                f"{over.replace('_', ' ')} parallel size must {fit} the {part.count} {part.pieces} of "
                f"{part.hf_name} ({parameter}); found {cut.size}: change `{over}`"
            )


def _shard(parameter: Parameter, place: Place, chunk: int, first_layer: int, first_expert: int) -> Shard:
    rule = parameter.rule
    cut = getattr(place, rule.over) if rule.over else Cut()
    expert = None if parameter.expert is None else parameter.expert - first_expert
    replicas = place.data if parameter.expert is None else place.expert_data
    copies = place.tensor if parameter.expert is None else place.expert_tensor
    first_copy = replicas.rank == 0 and (rule.over is not None or copies.rank == 0)
    prefix = f"{chunk}." if place.virtual_pipeline > 1 else ""
    return Shard(
        name=prefix + parameter.name.format(layer=parameter.layer - first_layer, expert=expert),
        parameter=parameter,
        shape=rule.shard_shape(cut.size),
        blocks=rule.blocks(cut.rank, cut.size),
        exports=first_copy and not parameter.tied,
    )
