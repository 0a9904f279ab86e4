"""vLLM's side of the name map: which slices of the Hugging Face tensors a worker holds, in pure numbers.

The counterpart of `NameMap.shards`, derived from the same rules. vLLM stacks the same parts in the same order
([q, k, v], [gate, up], [z, x, B, C, dt]). It differs in names and in its padding of the vocabulary, it has one tensor
for all experts of a layer, a linear of its own for the betas and alphas of a gated delta net, and it repeats key/value
heads and state groups if there are fewer than ranks. Source: the weight loaders of vLLM 0.32;
`tests/engine/refit/test_vllm_map.py` compares with them.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.models.families.family import family_of
from cascade_rl.engine.models.hf_config import HfConfig
from cascade_rl.engine.models.name_map import Block, Cut, Index, Parameter, Part, Rule, Shape, equal_ranges

VOCABULARY_MULTIPLE = 64
WHOLE = Cut()

# vLLM stacks the latent of keys and values on that of queries, if there is one
LATENTS, LATENT = "fused_qkv_a_proj", "kv_a_proj_with_mqa"

RENAMED = (
    (r"^backbone\.", "model."),
    (r"\.embeddings\.", ".embed_tokens."),
    (r"\.mixer\.A_log$", ".mixer.A"),
    (r"\.q_a_proj\.", f".{LATENTS}."),
    (r"\.in_proj_(?:qkvz?|z)\.", ".in_proj_qkvz."),
    (r"\.in_proj_(?:ba|b|a)\.", ".in_proj_ba."),
    (r"\.experts\.\d+\.(?:gate|up)_proj\.weight$", ".experts.routed_experts.w13_weight"),
    (r"\.experts\.\d+\.down_proj\.weight$", ".experts.routed_experts.w2_weight"),
)
# of a parameter with several parts
STACKED = ((r"\.[qkv]_proj\.", ".qkv_proj."), (r"\.(?:gate|up)_proj\.", ".gate_up_proj."))


@dataclass(frozen=True)
class WorkerPlace:
    """The position of a worker in its engine. `expert` is WHOLE unless vLLM uses expert parallelism."""

    tensor: Cut = WHOLE
    expert: Cut = WHOLE


@dataclass(frozen=True)
class WorkerShard:
    """What a worker holds of one parameter, in the layout in which vLLM loads it.

    blocks     as in `Shard`; with experts, `shard_index` has one more axis in front
    minus_exp  vLLM holds -exp of the HF tensor's numbers (Mamba's A)
    """

    name: str
    shape: Shape
    blocks: tuple[Block, ...]
    minus_exp: bool = False

    @property
    def padded(self) -> bool:
        """Whether there are entries that no HF tensor has."""
        return sum(size(block.shard_index) for block in self.blocks) < math.prod(self.shape)


def size(index: Index) -> int:
    """Number of elements of a rectangle."""
    return math.prod(axis.stop - axis.start for axis in index)


def worker_shards(hf: HfConfig, place: WorkerPlace) -> list[WorkerShard]:
    """What the worker at `place` holds, in the order of the layers. Raises UserError if vLLM cannot split it."""
    name_map = family_of(hf).name_map(hf)
    local = equal_ranges(name_map.experts, place.expert.size)[place.expert.rank]
    shards: dict[str, WorkerShard] = {}
    for parameter in name_map.parameters:
        own = not parameter.tied and (parameter.expert is None or parameter.expert in local)
        for shard in _shards(parameter, place, local) if own else ():
            if under := shards.get(shard.name.replace(LATENT, LATENTS)):
                beside = replace(under, blocks=under.blocks + shard.blocks)
                shard = _stacked(under, shard) if parameter.expert is None else beside
            shards[shard.name] = shard
    return list(shards.values())


def _stacked(under: WorkerShard, shard: WorkerShard) -> WorkerShard:
    """One parameter [outputs, inputs] of two: the outputs of `under`, then those of `shard`."""
    first = under.shape[0]
    moved = (
        replace(block, shard_index=(slice(first + rows.start, first + rows.stop), *others))
        for block in shard.blocks
        for rows, *others in (block.shard_index,)
    )
    return replace(under, shape=(first + shard.shape[0], *shard.shape[1:]), blocks=(*under.blocks, *moved))


def _shards(parameter: Parameter, place: WorkerPlace, local: range) -> Iterator[WorkerShard]:
    """vLLM's parameters for one of Megatron's. What lies between the pieces of a part it leaves there."""
    parts = dict.fromkeys(map(_with_what_is_between, parameter.rule.parts))
    named = partial(_vllm_name, stacked=len(parts) > 1)
    for name, group in groupby(parts, lambda part: named(part.hf_name)):
        yield _shard(name, replace(parameter, rule=replace(parameter.rule, parts=tuple(group))), place, local)


def _with_what_is_between(part: Part) -> Part:
    if part.stride is None:
        return part
    return replace(part, width=part.stride, start=0, stride=None)


def _shard(name: str, parameter: Parameter, place: WorkerPlace, local: range) -> WorkerShard:
    """A parameter, or one expert's part of it: `local` are the experts that the worker holds."""
    rule, cut = parameter.rule, _cut(parameter, place)
    if rule.multiple > 1:
        padded = replace(rule, multiple=VOCABULARY_MULTIPLE)
        return WorkerShard(name, padded.shard_shape(cut.size), padded.blocks(cut.rank, cut.size))
    expert = None if parameter.expert is None else parameter.expert - local.start
    front = () if expert is None else (slice(expert, expert + 1),)
    blocks = tuple(_parts_in_turn(rule, cut, front))
    length = blocks[-1].shard_index[len(front) + rule.axis].stop
    shape = (*rule.others[: rule.axis], length, *rule.others[rule.axis :])
    return WorkerShard(name, (len(local), *shape) if front else shape, blocks, minus_exp=name.endswith(".A"))


def _cut(parameter: Parameter, place: WorkerPlace) -> Cut:
    """Expert parallel workers hold whole experts; without expert parallelism, workers share each expert."""
    whole = parameter.rule.over is None or (parameter.expert is not None and place.expert.size > 1)
    return WHOLE if whole else place.tensor


def _parts_in_turn(rule: Rule, cut: Cut, front: Index) -> Iterator[Block]:
    whole = tuple(slice(0, other) for other in rule.others)
    before, behind = whole[: rule.axis], whole[rule.axis :]
    start = 0
    for part in rule.parts:
        pieces = _pieces(part, cut.size, alone=len(rule.parts) == 1)
        length = part.length // pieces
        first = part.start + cut.rank * pieces // cut.size * length
        hf, shard = slice(first, first + length), slice(start, start + length)
        yield Block(part.hf_name, (*before, hf, *behind), (*front, *before, shard, *behind))
        start += length


def _pieces(part: Part, size: int, *, alone: bool) -> int:
    """Into how many pieces `size` ranks split a part. vLLM splits a part that is alone anywhere, even inside a head."""
    if (part.length if alone else part.count) % size == 0:
        return size
    repeated = part.pieces == "key/value heads" or part.count == 1
    if not alone and repeated and size % part.count == 0:
        return part.count
    raise UserError(
        f"tensor parallel size of the engine must divide the {part.count} {part.pieces} of {part.hf_name}; "
        f"found {size}: change `rollout.tensor`"
    )


@cache
def _vllm_name(hf_name: str, stacked: bool) -> str:
    for pattern, name in (*RENAMED, *(STACKED if stacked else ())):
        hf_name = re.sub(pattern, name, hf_name)
    return hf_name
