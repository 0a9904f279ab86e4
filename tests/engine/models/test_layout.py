"""A layout that does not fit is told before anything starts, with the constraint and the nearest that fit."""

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import check_layout
from cascade_rl.engine.models.layout import token_multiple
from tests.engine.models.test_name_map import NANO_30B, QWEN3_30B, SMOLLM2_135M

SEQUENCE = {"sequence": True}


@pytest.mark.parametrize(
    ("hf", "parallel", "world", "constraint", "nearest"),
    [
        (QWEN3_30B, ParallelConfig(tensor=3, **SEQUENCE), None, "divide the 32 query heads", "tensor = 4; tensor = 2"),
        (NANO_30B, ParallelConfig(tensor=3, **SEQUENCE), None, "divide the 64 Mamba heads", "tensor = 4; tensor = 2"),
        (NANO_30B, ParallelConfig(tensor=16, **SEQUENCE), None, "the 8 state groups", "tensor = 8; tensor = 4"),
        (
            QWEN3_30B | {"num_attention_heads": 48},
            ParallelConfig(tensor=6, **SEQUENCE),
            None,
            "divide, or be a multiple of, the 4 key/value heads",
            "tensor = 8; tensor = 4",
        ),
        (NANO_30B, ParallelConfig(expert=12), None, "divide the 128 experts; found 12", "expert = 16; expert = 8"),
        (QWEN3_30B, ParallelConfig(expert_tensor=5), None, "the 768 channels", "expert_tensor = 6"),
        (SMOLLM2_135M, ParallelConfig(expert=2), None, "1 in a model without experts", "expert = 1"),
        (NANO_30B, ParallelConfig(pipeline=53), None, "at most 52, one layer per stage", "pipeline = 52"),
        (
            NANO_30B,
            ParallelConfig(pipeline=14, virtual_pipeline=4),
            None,
            r"found 56 stages \(pipeline 14 x virtual_pipeline 4\)",
            "pipeline = 13",
        ),
        (NANO_30B, ParallelConfig(virtual_pipeline=2), None, "found pipeline = 1", "virtual_pipeline = 1"),
        (
            NANO_30B,
            ParallelConfig(pipeline=2, pipeline_layers=(30, 20)),
            None,
            r"whose sum is 52, .* found \(30, 20\), whose sum is 50",
            "pipeline_layers = None",
        ),
        (NANO_30B, ParallelConfig(tensor=2), None, "need sequence parallelism", "sequence = True"),
        (SMOLLM2_135M, ParallelConfig(sequence=True), None, "found tensor = 1", "sequence = False"),
        (
            NANO_30B,
            ParallelConfig(tensor=8, context=16, **SEQUENCE),
            None,
            "context parallel size must divide the 8 Mamba heads on each of 8 tensor parallel ranks; found 16",
            "context = 8; tensor = 4",
        ),
        (
            NANO_30B | {"n_groups": 6, "mamba_num_heads": 24},
            ParallelConfig(context=4),
            None,
            "divide, or be a multiple of, the 6 state groups",
            "context = 3",
        ),
        (
            NANO_30B,
            ParallelConfig(tensor=2, context=2, **SEQUENCE),
            6,
            r"a multiple of 4 \(tensor 2 x pipeline 1 x context 2\), found 6",
            "context = 1; tensor = 1, sequence = False",
        ),
        (QWEN3_30B, ParallelConfig(expert=4), 6, "a multiple of 4 .expert 4 x", "expert = 2"),
        (QWEN3_30B, ParallelConfig(tensor=0), None, "tensor must be at least 1; found 0", "tensor = 1"),
    ],
)
def test_the_constraint_and_the_nearest_layouts_are_named(
    hf: dict, parallel: ParallelConfig, world: int | None, constraint: str, nearest: str
) -> None:
    with pytest.raises(UserError, match=f"{constraint}.*Nearest layouts that fit: .*{nearest}"):
        check_layout(hf, parallel, world)


@pytest.mark.parametrize(
    ("hf", "parallel", "world"),
    [
        (NANO_30B, ParallelConfig(tensor=2, pipeline=2, expert=8, sequence=True), 32),
        (NANO_30B, ParallelConfig(tensor=2, pipeline=4, virtual_pipeline=2, context=4, sequence=True), 32),
        (NANO_30B, ParallelConfig(pipeline=2, pipeline_layers=(27, 25)), 2),
        (QWEN3_30B, ParallelConfig(tensor=8, sequence=True), 8),  # 4 key/value heads
    ],
)
def test_layouts_that_fit(hf: dict, parallel: ParallelConfig, world: int) -> None:
    check_layout(hf, parallel, world)


def test_sequences_are_padded_to_whole_pieces_on_every_rank() -> None:
    assert token_multiple(ParallelConfig()) == 1
    assert token_multiple(ParallelConfig(tensor=2)) == 1
    assert token_multiple(ParallelConfig(tensor=2, sequence=True)) == 2
    assert token_multiple(ParallelConfig(context=3)) == 6
    assert token_multiple(ParallelConfig(tensor=2, sequence=True, context=2)) == 8
