"""Padding tokens leave no trace: not in the experts' counts, not in any output, not in any gradient."""

import json
from pathlib import Path

import pytest
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.moe.router import TopKRouter

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models import build_model
from cascade_rl.moe.padding import ignore_padding
from tests.engine.models import tiny
from tests.gloo import run_ranks

LENGTHS = (5, 11)
TOKENS, PADDING, TOPK = 16, 8, 2


@pytest.fixture(scope="module")
def hf_config(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder: Path = tmp_path_factory.mktemp("config")
    tiny.nemotron_h(architectures=["NemotronHForCausalLM"]).save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


def packed(lengths: tuple[int, ...]) -> PackedSeqParams:
    borders = torch.tensor([0, *lengths]).cumsum(0).int()
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=borders,
        cu_seqlens_kv=borders,
        cu_seqlens_q_padded=borders,
        cu_seqlens_kv_padded=borders,
        max_seqlen_q=max(lengths),
        max_seqlen_kv=max(lengths),
        total_tokens=sum(lengths),
    )


def traces(hf: dict, padding: int) -> dict[str, torch.Tensor]:
    """Hidden states of real tokens, gradients of a weighted sum of them, and each router's counts."""
    initialize_distributed(ParallelConfig(), seed=1)
    model = build_model(hf, ParallelConfig(), seed=1)
    ignore_padding(model)
    ids = torch.randint(1, tiny.VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(2))
    ids = torch.nn.functional.pad(ids, (0, padding))
    hidden = model(
        ids,
        torch.arange(TOKENS + padding)[None],
        None,
        packed_seq_params=packed(LENGTHS + (padding,) * bool(padding)),
        padding_mask=torch.arange(TOKENS + padding)[None] >= TOKENS,
    )[:, :TOKENS]
    hidden.backward(torch.linspace(-1, 1, hidden.numel()).view_as(hidden))
    found = {"hidden": hidden.detach()}
    found |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for name, module in model.named_modules():
        if isinstance(module, TopKRouter):
            found[f"{name} counts"] = module.local_tokens_per_expert
    return found


def test_padding_changes_nothing(hf_config: dict) -> None:
    [alone], [padded] = (run_ranks(1, traces, hf_config, padding) for padding in (0, PADDING))
    counts = [tensor for name, tensor in alone.items() if name.endswith("counts")]
    assert [count.sum() for count in counts] == [TOKENS * TOPK] * 2
    assert alone.keys() == padded.keys()
    assert len(alone) > 30
    for name, tensor in alone.items():
        rounding = 0 if name.endswith("counts") else 2e-6 * tensor.abs().max()
        assert (padded[name] - tensor).abs().max() <= rounding, name


def counts_of_megatrons_own_router(hf: dict) -> None:
    initialize_distributed(ParallelConfig(), seed=1)
    model = build_model(hf, ParallelConfig(), seed=1)
    router = next(module for module in model.modules() if isinstance(module, TopKRouter))
    mask = torch.arange(TOKENS) >= TOKENS - PADDING
    router(torch.randn(TOKENS, 1, hf["hidden_size"]), padding_mask=mask[None])


def test_the_subclass_is_still_needed(hf_config: dict) -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        run_ranks(1, counts_of_megatrons_own_router, hf_config)
