"""docs/attention_backends.md is about the launchers as they are, and says what Transformer Engine's own Python says.

    UPDATE_GOLDEN=1 make test-transformer-engine

writes the page anew. `make test` has no Transformer Engine; it compares the page with the launchers.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.launchers.plan.hardware import read_hardware
from cascade_rl.launchers.plan.model import model_of
from tests.engine.backend import transformer_engine

PAGE = Path(__file__).parents[2] / "docs/attention_backends.md"
WHEEL = os.environ.get("CASCADE_TRANSFORMER_ENGINE")  # the folder that it was unpacked into
LAUNCHERS = ("cascade2_30b_a3b", "cascade1_8b", "cascade1_8b_thinking", "cascade1_14b")
CARDS = ("h100", "b200")
DTYPES = ("bfloat16", "float32")
SAID = {"fused": "cuDNN", "flash": "FlashAttention", "unfused": "unfused"}
HEAD = """# Attention on a GPU

The trainer's attention is Transformer Engine's. Which of its backends runs depends on dtype, card and layout; where
none does, the first step of a stage fails. This table is what `get_attention_backend` of Transformer Engine 2.20.2
says, run by `make test-transformer-engine` with a stand-in of its compiled half. Rows are packed (THD), the mask is
causal. No flash-attn is installed, as in `requirements/cuda.txt`. The compiled half also asks cuDNN 9.20 whether it
takes a case, and the stand-in says yes: nothing here has run on a GPU.

In float32 there is none under context parallelism, which all these stages have. Therefore they train with
`parallel.precision="bfloat16"`.

| launcher | card | stages | heads, key heads of a rank | tokens | context | bfloat16 | float32 |
|---|---|---|---|---|---|---|---|
"""

Row = tuple[str, ...]


def cases() -> dict[Row, tuple[tuple[int, int], dict[str, Any]]]:
    """The first six cells of each row -> compute capability, and arguments of TE's AttentionParams."""
    stages: dict[Row, list[str]] = {}
    asked: dict[Row, tuple[tuple[int, int], dict[str, Any]]] = {}
    for launcher in LAUNCHERS:
        for card in CARDS:
            cascade = replace(importlib.import_module(f"cascade_rl.launchers.{launcher}").CASCADE, hardware=card)
            config = model_of(cascade.base).config
            for stage in cascade.stages:
                cut = cascade.layout(stage).parallel
                heads, keys = (config[f"num_{kind}"] // cut.tensor for kind in ("attention_heads", "query_groups"))
                key = (launcher, card, f"{heads}, {max(keys, 1)}", f"{stage.token_budget:,}", str(cut.context))
                stages.setdefault(key, []).append(stage.name)
                asked[key] = (
                    _capability(card),
                    {
                        "num_heads": heads,
                        "num_gqa_groups": max(keys, 1),
                        "max_seqlen_q": stage.token_budget,
                        "max_seqlen_kv": stage.token_budget,
                        "head_dim_qk": config["kv_channels"],
                        "head_dim_v": config["kv_channels"],
                        "context_parallel": cut.context > 1,
                        "cp_size": cut.context,
                    },
                )
    return {(*key[:2], ", ".join(stages[key]), *key[2:]): asked[key] for key in asked}


def _capability(card: str) -> tuple[int, int]:
    return int(read_hardware(card)[0].kernels.removeprefix("sm")) // 10, 0


def rows() -> list[Row]:
    """Of the page."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| cascade")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


def page(found: Sequence[Sequence[list[str]]]) -> str:
    """`found`: for each case the backends in each of DTYPES."""
    cells = [(*case, *map(_told, one)) for case, one in zip(cases(), found, strict=True)]
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _told(backends: list[str]) -> str:
    return ", else ".join(SAID[name] for name in backends) or "none"


def test_the_page_is_about_the_launchers() -> None:
    stale = "docs/attention_backends.md is stale: UPDATE_GOLDEN=1 make test-transformer-engine"
    assert [row[:-2] for row in rows()] == list(cases()), stale


def test_every_stage_has_an_attention_in_the_precision_that_it_trains_in() -> None:
    by_case = {row[:-2]: dict(zip(DTYPES, row[-2:], strict=True)) for row in rows()}
    assert all(found["bfloat16"].startswith("cuDNN") for found in by_case.values())
    assert all(found["float32"] == "none" for case, found in by_case.items() if case[-1] != "1")
    for launcher in LAUNCHERS:
        cascade = importlib.import_module(f"cascade_rl.launchers.{launcher}").CASCADE
        for card in CARDS:
            layouts = [replace(cascade, hardware=card).layout(stage) for stage in cascade.stages]
            assert {layout.parallel.precision for layout in layouts} == {"bfloat16"}


@pytest.mark.skipif(not WHEEL, reason="needs Transformer Engine's wheel: make test-transformer-engine")
def test_its_layers_have_our_parameters() -> None:
    """Names, shapes, dtypes, and what Megatron knows about them: a checkpoint of one is a checkpoint of the other."""
    command = [sys.executable, transformer_engine.__file__, str(WHEEL), "parameters"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(ran.stdout.splitlines()[-1]) == {model: {} for model in transformer_engine.MODELS}


@pytest.mark.skipif(not WHEEL, reason="needs Transformer Engine's wheel: make test-transformer-engine")
def test_it_is_what_transformer_engine_says() -> None:
    asked = [(*case[:1], dtype, case[1]) for case in cases().values() for dtype in DTYPES]
    command = [sys.executable, transformer_engine.__file__, str(WHEEL), "backends"]
    ran = subprocess.run(command, input=json.dumps(asked), check=True, capture_output=True, text=True)
    found = json.loads(ran.stdout)
    told = page([found[first : first + len(DTYPES)] for first in range(0, len(found), len(DTYPES))])
    if os.environ.get("UPDATE_GOLDEN") == "1":
        PAGE.write_text(told)
    assert PAGE.read_text() == told
