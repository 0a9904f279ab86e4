"""Low-rank adapters on the name map, in pure numbers: the rules of A and B follow from that of the weight they change.

An adapter belongs to a tensor of the Hugging Face checkpoint, as in PEFT: A is [rank, inputs], B is [outputs, rank].
A Megatron weight that is made of several tensors (query, key and value; gate and up) has the A of each, stacked, and
one B, whose rows are cut and ordered like the weight's own.

    weight split by outputs   B as the weight, A whole on every rank
    weight split by inputs    A as the weight, B whole on every rank

So a rank can make its part of B A by itself. A factor that is whole has on each rank a part of its gradient.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import LoraConfig, ParallelConfig
from cascade_rl.engine.models.name_map import NameMap, Parameter, Part, Place, Rule, Shard, replicated

BYPASSED = ("gradient_accumulation_fusion", "overlap_grad_reduce")
"""Fields of parallel.megatron with which a weight's gradient is not seen, or is awaited where there is none."""
PEFT_PREFIX = "base_model.model."  # of every tensor in adapter_model.safetensors


@dataclass(frozen=True)
class AdapterShard:
    """What one rank holds of a weight and of its factors. `tensors` are the HF tensors of the weight, in the order in
    which their factors A are stacked."""

    weight: Shard
    a: Shard
    b: Shard
    tensors: tuple[str, ...]

    @property
    def over(self) -> Literal["tensor", "expert_tensor"]:
        """The parallel dimension that splits the weight."""
        over = self.weight.parameter.rule.over
        assert over
        return over

    def rows(self) -> Iterator[list[slice]]:
        """For each of `tensors`, the rows of the weight's shard that belong to it: none if they are on other ranks."""
        for tensor in self.tensors:
            yield [block.shard_index[0] for block in self.weight.blocks if block.hf_name == tensor]


def check_lora(name_map: NameMap, lora: LoraConfig, parallel: ParallelConfig) -> None:
    """Raises UserError as `factor_map` does, or for a field of Megatron's with which adapters cannot be trained."""
    factor_map(name_map, lora)
    for name in BYPASSED:
        if parallel.megatron and getattr(parallel.megatron, name):
            raise UserError(
                f"parallel.megatron.{name}: expected false with lora, whose gradients are made from those of the "
                "weights and are small; found true. Leave the field out."
            )


def factor_map(name_map: NameMap, lora: LoraConfig) -> NameMap:
    """The map of all factors, under PEFT's names. Raises UserError for targets that the model does not have, or that
    are parts of a weight whose other parts are no targets."""
    weights = _adapted(name_map, lora)
    factors = (factor for weight in weights for factor in _factors(weight, lora.rank))
    return NameMap(tuple(factors), name_map.layers, name_map.experts)


def with_partners(name_map: NameMap, lora: LoraConfig) -> LoraConfig:
    """With all parts of each weight of which one is a target. One weight here may be several modules to PEFT."""
    chosen = set(lora.targets)
    for parameter in name_map.parameters:
        parts = {module_of(tensor) for tensor in _tensors(parameter.rule)}
        chosen |= parts if _is_matrix(parameter.rule) and chosen & parts else set()
    return replace(lora, targets=tuple(sorted(chosen)))


def adapter_shards(name_map: NameMap, lora: LoraConfig, place: Place) -> list[AdapterShard]:
    """What the rank at `place` holds. Raises UserError as `factor_map` does, or if the layout does not divide the
    model."""
    factors = {shard.name: shard for shard in factor_map(name_map, lora).shards(place)}
    return [
        AdapterShard(weight, factors[f"{weight.name}.a"], factors[f"{weight.name}.b"], _tensors(weight.parameter.rule))
        for weight in name_map.shards(place)
        if f"{weight.name}.a" in factors
    ]


def module_of(tensor: str) -> str:
    """The module that holds an HF tensor, by its own name: q_proj."""
    return tensor.split(".")[-2]


def factor_name(tensor: str, factor: str) -> str:
    """PEFT's name of factor "A" or "B" of an HF tensor."""
    return f"{PEFT_PREFIX}{tensor.removesuffix('.weight')}.lora_{factor}.weight"


def _adapted(name_map: NameMap, lora: LoraConfig) -> list[Parameter]:
    able = [parameter for parameter in name_map.parameters if _is_matrix(parameter.rule)]
    known = {module_of(tensor): None for parameter in able for tensor in _tensors(parameter.rule)}
    if unknown := [target for target in lora.targets if target not in known]:
        raise UserError(f"lora.targets: expected names among {', '.join(known)}; found {', '.join(unknown)}.")
    chosen = set(lora.targets or known)
    for parameter in able:
        parts = [module_of(tensor) for tensor in _tensors(parameter.rule)]
        if chosen.intersection(parts) and not chosen.issuperset(parts):
            raise UserError(
                f"lora.targets: expected all or none of {', '.join(parts)}, which are one weight in training; found "
                f"{', '.join(part for part in parts if part in chosen)}. Name them all, or none."
            )
    return [parameter for parameter in able if module_of(parameter.rule.parts[0].hf_name) in chosen]


def _is_matrix(rule: Rule) -> bool:
    """Whether it is the weight of a linear layer that is split: no vocabulary, norm, convolution or router."""
    return rule.over is not None and rule.multiple == 1 and len(rule.others) == 1


def _tensors(rule: Rule) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.hf_name for part in rule.parts))


def _factors(weight: Parameter, rank: int) -> tuple[Parameter, Parameter]:
    rule, (others,) = weight.rule, weight.rule.others
    if rule.axis == 0:
        a = Rule(tuple(Part(factor_name(tensor, "A"), rank) for tensor in _tensors(rule)), (others,))
        parts = tuple(replace(part, hf_name=factor_name(part.hf_name, "B")) for part in rule.parts)
        b = replace(rule, parts=parts, others=(rank,))
    else:
        (part,) = rule.parts
        a = replace(rule, parts=(replace(part, hf_name=factor_name(part.hf_name, "A")),), others=(rank,))
        b = replicated(factor_name(part.hf_name, "B"), others, rank)
    return _factor(weight, "a", a), _factor(weight, "b", b)


def _factor(weight: Parameter, name: str, rule: Rule) -> Parameter:
    return replace(weight, name=f"{weight.name}.{name}", rule=rule)
