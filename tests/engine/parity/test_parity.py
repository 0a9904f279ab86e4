"""A certificate says how far transformers, Megatron and vLLM are apart, and in which layer they part."""

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.parity.certificate import ROUNDED, Bounds, Certificate, worst_tokens
from cascade_rl.engine.parity.measure import certify, open_trainer, texts
from cascade_rl.engine.parity.passages import PASSAGES
from cascade_rl.engine.sync.gap import gap_of
from cascade_rl.launchers.cli.parity import add_arguments, bounds_of
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from tests.engine.models import tiny
from tests.gloo import run_ranks

FAULTS = {
    "nemotron_h": ("decoder.layers.3.self_attention.linear_proj.weight", "layer 3 (attention)"),
    "qwen3": ("decoder.layers.2.self_attention.q_layernorm.weight", "layer 2 (attention)"),
    "qwen3_moe": ("decoder.layers.1.mlp.router.weight", "layer 1 (experts)"),
    "qwen3_next": ("decoder.layers.0.self_attention.A_log", "layer 0 (delta net)"),
    "qwen2": ("decoder.layers.2.self_attention.linear_qkv.bias", "layer 2 (attention)"),
    "llama": ("decoder.layers.3.mlp.linear_fc2.weight", "layer 3 (MLP)"),
    "glm4_moe": ("decoder.layers.4.self_attention.linear_qkv.bias", "layer 4 (attention)"),
    "deepseek_v3": ("decoder.layers.2.self_attention.kv_layernorm.weight", "layer 2 (attention)"),
}
LAYOUTS = {
    "nemotron_h": ParallelConfig(tensor=2, expert=2, sequence=True),
    "qwen3": ParallelConfig(context=2),
    "qwen3_moe": ParallelConfig(expert=2),
    "qwen3_next": ParallelConfig(context=2, expert=2),
    "qwen2": ParallelConfig(tensor=2),
    "llama": ParallelConfig(tensor=2),
    "glm4_moe": ParallelConfig(context=2, expert=2),
    "deepseek_v3": ParallelConfig(context=2, expert=2),
}
LONG = ("qwen2", "llama", "qwen3_next", "glm4_moe", "deepseek_v3")
BOUNDS = Bounds(logprob=1e-5, layer=1e-5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model of each family, with a tokenizer of the passages."""
    tokenizer = train_tokenizer([[{"role": "user", "content": passage}] for passage in PASSAGES])
    root = tmp_path_factory.mktemp("models")
    for family, config in tiny.FAMILIES.items():
        sizes = {"head_dim": 32, "hidden_size": 128}  # vLLM has no kernel for heads of 16
        tiny.save(config(vocab_size=len(tokenizer), **sizes), root / family)
        tokenizer.save_pretrained(root / family)
    return {family: root / family for family in tiny.FAMILIES}


def before_and_after(folder: Path, parallel: ParallelConfig, parameter: str) -> list[Certificate]:
    """The certificate, and that of the same model with a fault in one parameter."""
    initialize_distributed(parallel, seed=1)
    trainer = open_trainer(folder, parallel)
    certificates = [certify(trainer, folder, BOUNDS, rollout=None)]
    tensors = dict(trainer.module.named_parameters())
    with torch.no_grad():
        tensors[parameter] += torch.randn(tensors[parameter].shape, generator=torch.Generator().manual_seed(1)) / 10
    return [*certificates, certify(trainer, folder, BOUNDS, rollout=None)]


def families() -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in tiny.FAMILIES]


@pytest.fixture(scope="module", params=families())
def found(request: pytest.FixtureRequest, folders: dict[str, Path]) -> tuple[str, list[Certificate]]:
    family = request.param
    return family, run_ranks(2, before_and_after, folders[family], LAYOUTS[family], FAULTS[family][0])[0]


def test_megatron_under_a_layout_is_the_model_of_transformers(found: tuple[str, list[Certificate]]) -> None:
    certificate = found[1][0]
    assert list(certificate.failures()) == []
    assert list(certificate.pairs) == ["Megatron/transformers"]
    assert 0 < certificate.pairs["Megatron/transformers"].max < 1e-5
    assert certificate.first_difference is None


def in_bfloat16(folder: Path) -> Certificate:
    parallel = ParallelConfig(precision="bfloat16")
    initialize_distributed(parallel, seed=1)
    return certify(open_trainer(folder, parallel), folder, ROUNDED, rollout=None)


def test_a_trainer_in_bfloat16_is_as_far_as_its_rounding_in_every_layer(folders: dict[str, Path]) -> None:
    (certificate,) = run_ranks(1, in_bfloat16, folders["qwen3"])
    gap = certificate.pairs["Megatron/transformers"]
    assert 1e-3 < gap.max < 0.1
    assert all(1e-4 < layer.gap < 0.03 for layer in certificate.layers)
    assert list(certificate.failures()) == []
    outlier = replace(certificate, pairs={"a/b": replace(gap, max=3.0)})  # of one token, as in NVIDIA-NeMo/RL#2100
    assert list(outlier.failures()) == []
    for name, told in (("tail", "99.9th percentile of the gap"), ("mean", "mean gap")):
        (failure,) = replace(certificate, pairs={"a/b": replace(gap, **{name: 3.0})}).failures()
        assert failure.startswith(f"a/b: {told} of a log-prob 3.0e+00, expected at most ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", Bounds()),
        ("--precision bfloat16", ROUNDED),
        ("--engine-dtype bfloat16", ROUNDED),
        ("--engine-dtype bfloat16 --without vllm", Bounds()),
        ("--bound 1e-3 --mean-bound 1e-5 --tme-bound 1.01", Bounds(logprob=1e-3, mean=1e-5, tme=1.01)),
        ("--precision bfloat16 --bound 0.2", replace(ROUNDED, logprob=0.2)),
    ],
)
def test_the_bounds_suit_the_dtypes_unless_they_are_given(words: str, expected: Bounds) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert "largest allowed gap of a log-prob; in bfloat16 of 99.9 % of the" in " ".join(parser.format_help().split())
    assert bounds_of(parser.parse_args(["MODEL", *words.split()])) == expected


def test_a_fault_is_found_by_the_name_of_its_layer(found: tuple[str, list[Certificate]]) -> None:
    family, (_, certificate) = found
    assert next(certificate.failures()).startswith("Megatron/transformers: largest gap of a log-prob ")
    assert certificate.first_difference is not None
    assert certificate.first_difference.layer == FAULTS[family][1]
    assert certificate.first_difference.gap > 1e-3


def test_every_place_of_the_model_is_compared(found: tuple[str, list[Certificate]]) -> None:
    kinds = {
        "nemotron_h": ["Mamba", "experts", "Mamba", "attention", "experts", "MLP"],
        "qwen3": ["attention", "MLP"] * 2,
        "qwen3_moe": ["attention", "experts"] * 2,
        "qwen3_next": ["delta net", "experts", "attention", "experts"],
        "qwen2": ["attention", "MLP"] * 2,
        "llama": ["attention", "MLP"] * 2,
        "glm4_moe": ["attention", "MLP", *["attention", "experts"] * 2],
        "deepseek_v3": ["attention", "MLP", *["attention", "experts"] * 2],
    }[found[0]]
    layers = [f"layer {number} ({kind})" for number, kind in enumerate(kinds)]
    assert [layer.layer for layer in found[1][0].layers] == ["embedding", *layers, "final norm"]


def test_the_worst_token_is_told_with_its_text(found: tuple[str, list[Certificate]], folders: dict[str, Path]) -> None:
    family, (_, certificate) = found
    tokenizer = AutoTokenizer.from_pretrained(folders[family])
    worst = certificate.worst[0]
    ids = texts(tokenizer)[worst.sequence]
    assert worst.gap == pytest.approx(certificate.pairs["Megatron/transformers"].max)
    assert tokenizer.decode(ids[worst.position]) == worst.token
    assert tokenizer.decode(ids[: worst.position]).endswith(worst.context)
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(folders[family], dtype=torch.float32)
        logprobs = model(torch.tensor([ids])).logits[0, worst.position - 1].log_softmax(-1)
    assert worst.logprobs[1] == pytest.approx(float(logprobs[ids[worst.position]]), abs=1e-4)


def test_a_gap_is_largest_mean_and_multiplicative() -> None:
    gap = gap_of([np.zeros(2), np.zeros(2)], [np.array([0.0, -0.5]), np.array([1.0, 0.0])])
    assert (gap.max, gap.mean) == (1.0, 0.375)
    assert gap.tme == pytest.approx((2 + np.exp(0.5) + np.exp(1)) / 4)


def test_the_worst_tokens_are_of_any_pair_and_nan_is_the_worst() -> None:
    zeros = [np.zeros(2), np.zeros(1)]
    compared = {"a/b": (zeros, [np.array([0.1, np.nan]), zeros[1]]), "a/c": (zeros, [zeros[0], np.array([-0.2])])}
    worst = worst_tokens(compared, [[5, 6, 7], [8, 9]], lambda ids: " ".join(map(str, ids)))
    assert [(token.pair, token.token, token.context) for token in worst] == [
        ("a/b", "7", "5 6"), ("a/c", "9", "8"), ("a/b", "6", "5")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"bounds": Bounds(logprob=float("nan"))}, "Megatron/transformers: largest gap"),
        ({"bounds": Bounds(tme=1.0)}, "Megatron/transformers: mean of exp|gap|"),
        ({"replay_fraction": 0.5}, "0.5000 of vLLM's experts were replayed in Megatron, expected all"),
    ],
)
def test_each_bound_can_refuse(found: tuple[str, list[Certificate]], changes: dict, told: str) -> None:
    (failure,) = replace(found[1][0], **changes).failures()
    assert failure.startswith(told)


def test_the_command_compares_all_three_on_two_ranks(folders: dict[str, Path], tmp_path: Path) -> None:
    """And exits with 1, because nothing agrees to 1e-9."""
    layout, out = ("--tensor", "2", "--expert", "2"), tmp_path / "certificate.json"
    words = ("parity", str(folders["nemotron_h"]), *layout, "--bound", "1e-9", "--json", str(out))
    command = [sys.executable, "-m", "cascade_rl.launchers.cli.main", *words]
    told = subprocess.run(command, capture_output=True, text=True, timeout=900, env=dict(os.environ))
    assert told.returncode == 1, told.stderr
    certificate = json.loads(out.read_text())
    assert list(certificate["pairs"]) == ["Megatron/transformers", "Megatron/vLLM", "transformers/vLLM"]
    for pair, gap in certificate["pairs"].items():
        assert 1e-9 < gap["max"] < (1e-5 if pair == "Megatron/transformers" else 2e-3)
        assert 1 < gap["tme"] < 1.001
    assert certificate["replay_fraction"] == 1.0
    assert len(certificate["failures"]) == 3
    assert "refit: each slice of each weight in vLLM has the digest of the trainer's" in told.stdout
    assert re.search(
        r"beyond the bounds: Megatron/vLLM: largest gap of a log-prob \S+, expected at most 1e-09", told.stdout
    )


@pytest.mark.long
def test_the_command_in_bfloat16_is_within_the_bounds_that_suit_it(folders: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "certificate.json"
    dtypes = ("--precision", "bfloat16", "--engine-dtype", "bfloat16")
    command = [sys.executable, "-m", "cascade_rl.launchers.cli.main", "parity", str(folders["nemotron_h"]), *dtypes]
    told = subprocess.run([*command, "--json", str(out)], capture_output=True, text=True, timeout=900)
    assert told.returncode == 0, told.stdout + told.stderr
    certificate = json.loads(out.read_text())
    assert certificate["bounds"] == asdict(ROUNDED)
    for gap in certificate["pairs"].values():
        assert 1e-4 < gap["mean"] < gap["tail"] <= gap["max"]
    assert certificate["replay_fraction"] == 1.0
