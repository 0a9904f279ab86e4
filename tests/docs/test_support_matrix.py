"""docs/support_matrix.md is the tables by which other tests are parametrised. UPDATE_GOLDEN=1 writes it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.settings import ParallelConfig
from tests.engine.models import test_conversion as conversion
from tests.engine.models import tiny
from tests.engine.parity import test_parity as parity
from tests.engine.refit import test_vllm_map as vllm_map
from tests.engine.rollout import test_vllm_refit as refit
from tests.engine.train import test_invariance as invariance
from tests.engine.train import test_invariance_bfloat16 as bfloat16

PAGE = Path(__file__).parents[2] / "docs/support_matrix.md"
NAMES = {
    "nemotron_h": "Nemotron-H",
    "qwen3_moe": "Qwen3-MoE",
    "qwen3_next": "Qwen3-Next",
    "qwen3": "Qwen3",
    "qwen2": "Qwen2, Qwen2.5",
    "llama": "Llama 2 to 3.3",
    "glm4_moe": "GLM-4.5 to 4.7",
    "deepseek_v3": "DeepSeek-V3 (MLA)",
}
SHORT = {
    "tensor": "TP",
    "expert_tensor": "ETP",
    "pipeline": "PP",
    "virtual_pipeline": "VP",
    "context": "CP",
    "expert": "EP",
}
HEAD = """# Support matrix

Which model family runs under which layout, in which precision, and what proves it. Each row is a case of a test, on
tiny random models and the ranks of a CPU; the page is made from those tables (`tests/docs/test_support_matrix.py`).
TP: tensor, SP: sequence, PP: pipeline, VP: virtual pipeline, CP: context, EP: expert, ETP: expert tensor, DP: data
parallel; the number is that of ranks.

**Nothing here ran on a GPU.** What stands in for one is in [On GPUs](gpu.md#what-is-proved-and-by-what). What a layout
must divide is in [Layouts](parallelism.md). The layouts of the published launchers are planned, not run
([the plan](plan.md)).

"""
TRAINING = """## Training

The same global batch gives the same loss, gradients, router biases and next step as one process: `fp32`, to 1e-5
(`tests/engine/train/test_invariance.py`). In `bf16` it is as near to the float32 answer as one process in bfloat16 is
(`tests/engine/train/test_invariance_bfloat16.py`). *Long*: run by `make test-long` alone. A family without a column has
no such case: Qwen3 and Qwen2 have the layers of the others, and the cases of the next table.

"""
AROUND = """## From a checkpoint to the engine

| family | logits of transformers, exact export | log-probs of every layer | vLLM's workers | refit of a real engine |
|---|---|---|---|---|
"""
LEGEND = """
All in float32, by one test a column: `tests/engine/models/test_conversion.py` (logits to 1e-5, exported files bit for
bit), `tests/engine/parity/test_parity.py` (to 1e-5 in every layer), `tests/engine/refit/test_vllm_map.py` (what one
holds is what vLLM's own loader gives it), `tests/engine/rollout/test_vllm_refit.py` (what the engine computes after the
refit is what transformers makes of the weights). W: tensor parallel workers; `EP`: they hold whole experts. A refit in
bfloat16 has one case, Nemotron-H, which is *long* (`tests/engine/sync/test_refit_bfloat16.py`).
"""


def page() -> str:
    return HEAD + TRAINING + "\n".join(training()) + "\n\n" + AROUND + "\n".join(around()) + "\n" + LEGEND


def training() -> Iterator[str]:
    families = list(invariance.MATRIX)
    yield f"| layout | {' | '.join(NAMES[family] for family in families)} |"
    yield "|---|" + "---|" * len(families)
    layouts = dict.fromkeys(layout for cases in bfloat16.CASES.values() for layout in cases)
    for layout in layouts:
        cells = ["one rank" if layout == "1" else layout, *(proved(family, layout) for family in families)]
        yield f"| {' | '.join(cells)} |"


def proved(family: str, layout: str) -> str:
    told = f"fp32{' (*long*)' * (family in invariance.LONG)}"
    exact = ["the reference"] * (layout == "1") + [told] * (layout in invariance.MATRIX[family])
    quick = layout in bfloat16.QUICK.get(family, ())
    rounded = ["bf16" if quick else "bf16 (*long*)"] * (layout in bfloat16.CASES[family])
    return ", ".join(exact + rounded)


def around() -> Iterator[str]:
    for family in tiny.FAMILIES:
        cells = (
            [short(cut) for name, _, cut in conversion.CASES if name == family],
            [short(parity.LAYOUTS[family]) + " (*long*)" * (family in parity.LONG)],
            [f"W{workers}{' EP' * whole}" for name, workers, whole in vllm_map.CASES if name == family],
            [told for case in refit.CASES for name, told in [refitted(case)] if name == family],
        )
        yield f"| {NAMES[family]} | {' | '.join('; '.join(cell) for cell in cells)} |"


def refitted(case: Any) -> tuple[str, str]:
    """Family, and trainer's layout with the engine's workers, of a case with or without marks."""
    family, parallel, workers, _ = getattr(case, "values", case)
    long = any(mark.name == "long" for mark in getattr(case, "marks", ()))
    return family, f"{short(parallel)} to W{workers}{' (*long*)' * long}"


def short(parallel: ParallelConfig) -> str:
    parts: list[str] = []
    for name, letters in SHORT.items():
        size = getattr(parallel, name)
        parts += [f"{letters}{size}"] * (size > 1) + ["SP"] * (name == "tensor" and parallel.sequence)
    return " ".join(parts) or "one rank"


def test_the_page_is_what_the_tests_prove() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "stale: UPDATE_GOLDEN=1 pytest tests/docs/test_support_matrix.py"


def test_every_family_and_every_case_is_there() -> None:
    assert NAMES.keys() == tiny.FAMILIES.keys()
    assert invariance.MATRIX.keys() == bfloat16.CASES.keys()
    told = "\n".join(training())
    assert told.count("fp32") == sum(map(len, invariance.MATRIX.values()))
    assert told.count("bf16") == sum(map(len, bfloat16.CASES.values()))
