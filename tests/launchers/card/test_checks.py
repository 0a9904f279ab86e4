"""The checks that one process makes: what passes here, and what each says of a machine that is not fit."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from cascade_rl.engine.backend import cards
from cascade_rl.launchers.card import checks
from cascade_rl.launchers.card.check import Unfit

ATTENTION = "transformer_engine.pytorch.attention.dot_product_attention"


def test_the_nccl_that_torch_was_built_with_loads_here(monkeypatch: pytest.MonkeyPatch):
    assert checks.nccl() == "2.29.7"
    monkeypatch.setattr(cards, "nccl", lambda: "2.21.5")
    with pytest.raises(Unfit, match=r"expected NCCL 2.29.7.*found 2.21.5.*LD_LIBRARY_PATH"):
        checks.nccl()


def test_cards_that_do_not_reach_each_other_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cards, "count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: True)
    assert checks.peers() == "3 cards"
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: (one, other) != (2, 0))
    with pytest.raises(Unfit, match=r"found 1 pairs that cannot, one is \(2, 0\)"):
        checks.peers()


def attention_that_takes(monkeypatch: pytest.MonkeyPatch, chosen: dict[bool, tuple[bool, bool, bool]]) -> None:
    """A Transformer Engine whose choice of [flash, fused, unfused] depends on context parallelism alone."""

    def backend_of(asked: Any) -> tuple[Any, ...]:
        flash, fused, unfused = chosen[asked.context_parallel]
        return flash, None, fused, None, unfused, [flash, fused, unfused]

    module: Any = ModuleType(ATTENTION)
    module.utils = SimpleNamespace(AttentionParams=SimpleNamespace, get_attention_backend=backend_of)
    names = ATTENTION.split(".")
    for end in range(1, len(names)):
        monkeypatch.setitem(sys.modules, ".".join(names[:end]), ModuleType(names[end - 1]))
    monkeypatch.setitem(sys.modules, ATTENTION, module)


def test_an_attention_is_there_with_and_without_context_parallelism(monkeypatch: pytest.MonkeyPatch):
    attention_that_takes(monkeypatch, {False: (True, True, True), True: (False, True, False)})
    assert checks.attention() == "bfloat16: flash; bfloat16 under context parallelism: fused"
    attention_that_takes(monkeypatch, {False: (False, False, True), True: (False, False, False)})
    with pytest.raises(
        Unfit, match="packed rows in bfloat16 under context parallelism, found none: run with NVTE_DEBUG"
    ):
        checks.attention()


def test_the_kernels_agree_with_float64(monkeypatch: pytest.MonkeyPatch):
    assert "of float64" in checks.kernels()
    monkeypatch.setattr(checks, "KERNEL_BOUND", 0.0)
    with pytest.raises(Unfit, match="expected log-probs within 0e"):
        checks.kernels()


def test_a_node_without_a_driver_is_not_fit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unfit, match="nvidia-smi: not found on PATH"):
        checks.node()
