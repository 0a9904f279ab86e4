"""Which model a teacher is, seen from its student: the same one with other weights, or another one of the same tokens.

Works without torch: a launcher asks before anything starts.
"""

from dataclasses import replace
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import HfConfig, check_layout, family_of
from cascade_rl.engine.models.hf_config import read, rotary_kind, rotary_settings


def same_model(one: HfConfig, other: HfConfig) -> bool:
    """Whether weights of the one are weights of the other, whoever wrote the files and however keys are spelt.

    Raises UserError for a family that is not supported.
    """
    return _of(one) == _of(other)


def teacher_config(where: str, teacher: HfConfig, student: HfConfig) -> HfConfig:
    """config.json of the model that the teacher is here. It has the student's ids alone: what a checkpoint has beyond
    them is padding or no token of the common tokenizer, and its distribution is over the ids that both have.

    where  the key of the teacher

    Raises UserError if the student has ids that the teacher lacks.
    """
    own, ids = read(teacher, "vocab_size"), read(student, "vocab_size")
    if own < ids:
        raise UserError(
            f"{where}: expected a teacher with all {ids} ids of the student (vocab_size), found {own}. It has no "
            "log-prob of the others, which the student may sample: choose another teacher"
        )
    return {**teacher, "vocab_size": ids}


def teacher_layout(teacher: HfConfig, parallel: ParallelConfig) -> ParallelConfig:
    """The trainer's, by which the ranks are cut, without what only a backward pass or experts need."""
    megatron = parallel.megatron and replace(parallel.megatron, recompute_method=None, recompute_num_layers=None)
    expert = parallel.expert if "E" in family_of(teacher).pattern(teacher) else 1
    return replace(parallel, expert=expert, recompute=(), megatron=megatron)


def check_teacher(
    where: str, teacher: HfConfig, student: HfConfig, parallel: ParallelConfig, world: int, longest: int
) -> None:
    """Raises UserError unless the teacher can score the student's tokens on the trainer's ranks.

    longest  tokens that prompt and answer share
    """
    positions = teacher.get("max_position_embeddings", longest)
    if positions < longest:
        raise UserError(
            f"{where}: expected a teacher of at least rollout.max_model_len = {longest:,} tokens, found one of "
            f"{positions:,} (max_position_embeddings). Lower rollout.max_model_len, or choose another teacher"
        )
    model = teacher_config(where, teacher, student)
    try:
        check_layout(model, teacher_layout(model, parallel), world)
    except UserError as error:
        raise UserError(
            f"{where}: expected a teacher that the trainer can compute in the student's layout: {error}"
        ) from None


def _of(hf: HfConfig) -> Any:
    family = family_of(hf)
    rope = {name: value for name, value in rotary_settings(hf).items() if name not in ("type", "rope_type")}
    shape = family.pattern(hf), family.transformer_config(hf), family.model_kwargs(hf), rotary_kind(hf), rope
    return family.architecture, *shape, read(hf, "vocab_size")
