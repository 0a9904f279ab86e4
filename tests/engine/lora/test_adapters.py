"""Adapters learn what full training says of the weights that they make, and say the same in every layout.

The reference is full training of the merged weights in one process: G of a weight W = W0 + s B A makes dA = s B^T G and
dB = s G A^T (float64).
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from megatron.core import parallel_state
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader

from cascade_rl.engine.backend.process_groups import cut_ranks, initialize_distributed
from cascade_rl.engine.backend.ranks import is_rank0
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import LoraConfig, ParallelConfig
from cascade_rl.engine.lora.memory import adapter_bytes
from cascade_rl.engine.lora.peft import export_adapters
from cascade_rl.engine.lora.rules import adapter_shards
from cascade_rl.engine.models import export_hf, family_of, read_config
from cascade_rl.engine.models.build import place_of_this_rank
from cascade_rl.engine.models.name_map import Shard
from cascade_rl.engine.train import checkpoint
from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.engine.train.trainer import Trainer
from tests.engine.models import tiny
from tests.engine.train.test_invariance import (
    BOUND,
    EXPERTS,
    OPTIMIZER,
    TP2,
    VP2,
    gaps,
    in_hf_names,
    sequences,
    whole_gradients,
)
from tests.gloo import run_ranks

LORA = LoraConfig(rank=4, alpha=6.0)
FULL = ParallelConfig(recompute=("full",))
LAYOUTS: dict[str, dict[str, tuple[int, ParallelConfig]]] = {
    # Mamba's stacked projection, query groups, experts, shared experts
    "nemotron_h": {
        "recompute": (1, FULL),
        "EP2": (2, ParallelConfig(expert=2)),
        "TP2 SP ETP2": (2, ParallelConfig(**TP2, expert_tensor=2)),
        "PP2 VP2": (2, ParallelConfig(**VP2)),
    },
    # gated, dense, with a tied head
    "llama": {"TP2": (2, ParallelConfig(tensor=2)), "PP2": (2, ParallelConfig(pipeline=2))},
}
MORE: dict[str, dict[str, tuple[int, ParallelConfig]]] = {
    "nemotron_h": {
        "TP2 SP EP2": (2, ParallelConfig(**TP2, expert=2)),
        "CP2": (2, ParallelConfig(context=2)),
        "TP2 SP ETP2 EP2": (4, ParallelConfig(**TP2, expert_tensor=2, expert=2)),
    },
    "qwen3_moe": {
        "TP4 SP, 2 key/value heads": (4, ParallelConfig(tensor=4, sequence=True)),
        "TP2 SP PP2 EP2": (4, ParallelConfig(**TP2, pipeline=2, expert=2)),
        "DP2 CP2": (4, ParallelConfig(context=2)),
    },
}
Named = dict[str, np.ndarray]


@dataclass
class Answer:
    gradients: Named  # by PEFT's names; of what a rank holds, elsewhere NaN
    grad_norm: float
    after: np.ndarray
    unplanned: int = 0  # bytes that the adapters take on the rank and `adapter_bytes` does not say, or the reverse


def new_trainer(model: Path, parallel: ParallelConfig, budget: int = 64, lora: LoraConfig | None = LORA) -> Trainer:
    trainer = Trainer(read_config(model), parallel, OPTIMIZER, total_steps=4, token_budget=budget, seed=1, lora=lora)
    trainer.load_hf(model)
    return trainer


def moved(trainer: Trainer) -> Trainer:
    """With a B that is not 0, the same in every layout."""
    assert trainer.lora
    for shard, factor in trainer.lora.factors():
        for block in shard.blocks if "lora_B" in shard.blocks[0].hf_name else ():
            shape = shard.parameter.rule.hf_shapes()[block.hf_name]
            drawn = np.random.default_rng(list(block.hf_name.encode())).normal(size=shape) / 10
            factor.data[block.shard_index] = torch.from_numpy(drawn).float()[block.hf_index]
    trainer.lora.merge()
    trainer.optimizer.reload_model_params()
    return trainer


def answer(trainer: Trainer) -> Answer:
    """Of one update. Collective."""
    batch = sequences(EXPERTS[trainer.hf_config["model_type"]])
    step, found = trainer.optimizer.step, dict[str, Named]()

    def capture() -> tuple[bool, float, int]:
        gradients = whole_gradients(trainer)
        if trainer.lora:
            held = ((shard, factor.main_grad) for shard, factor in trainer.lora.factors())
            found["gradients"] = in_peft_names(held)
        else:
            found["gradients"] = in_hf_names(trainer, gradients)
        return step()

    trainer.optimizer.step = capture
    norm = trainer.update(batch if is_rank0() else [], SftLoss(), 0)["grad_norm"]
    unplanned = unplanned_bytes(trainer) if trainer.lora else 0
    return Answer(found["gradients"], norm, np.concatenate(trainer.log_probs(batch)), unplanned)


def unplanned_bytes(trainer: Trainer) -> int:
    assert trainer.lora
    place, name_map = place_of_this_rank(), family_of(trainer.hf_config).name_map(trainer.hf_config)
    planned = adapter_bytes(adapter_shards(name_map, LORA, place), place, itemsize=4)
    buffers = [buffer for ddp in trainer.ddp for buffer in (*ddp.buffers, *ddp.expert_parallel_buffers)]
    states = [state for part in trainer.optimizer.chained_optimizers for state in part.optimizer.state.values()]
    held = (
        (planned.state.weights, sum(factor.nbytes for _, factor in trainer.lora.factors())),
        (planned.state.gradients, sum(buffer.grad_data.nbytes for buffer in buffers)),
        (planned.state.optimizer, sum(t.nbytes for state in states for t in state.values() if t.dim())),
        (planned.base, sum(tensor.nbytes for tensor in trainer.lora.base.tensors)),
    )
    return max(abs(one - other) for one, other in held)


def in_peft_names(held: Iterator[tuple[Shard, torch.Tensor]]) -> Named:
    """What this rank holds, in the shape of the whole, elsewhere NaN."""
    whole: Named = {}
    for shard, tensor in held:
        for block in shard.blocks:
            shape = shard.parameter.rule.hf_shapes()[block.hf_name]
            named = whole.setdefault(block.hf_name, np.full(shape, np.nan, np.float32))
            named[block.hf_index] = tensor.detach()[block.shard_index].numpy()
    return whole


def one_process(model: Path, folder: Path) -> tuple[Answer, Answer]:
    """That of adapters, and that of full training of the same weights, which are written into `folder`."""
    initialize_distributed(ParallelConfig(), seed=1)
    adapted = moved(new_trainer(model, ParallelConfig(), 512))
    assert adapted.lora
    export_hf(adapted.module, adapted.hf_config, folder / "merged")
    export_adapters(adapted.lora, adapted.hf_config, folder / "adapter", str(model))
    return answer(adapted), answer(new_trainer(folder / "merged", ParallelConfig(), 512, lora=None))


def outcomes(model: Path, layouts: dict[str, ParallelConfig], expected: Answer) -> dict[str, tuple]:
    """For each layout: the largest gap of a gradient, of the norm, of a log-prob after the step; the names held; the
    bytes that are not planned."""
    initialize_distributed(ParallelConfig(), seed=1)
    found = {}
    for name, parallel in layouts.items():
        parallel_state.destroy_model_parallel()
        cut_ranks(parallel)
        here = answer(moved(new_trainer(model, parallel)))
        worst = max(gaps(here.gradients, expected.gradients))
        norm = abs(here.grad_norm / expected.grad_norm - 1)
        found[name] = worst, norm, np.abs(here.after - expected.after).max(), set(here.gradients), here.unplanned
    return found


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Answer, Answer]]:
    @cache
    def of(model: str) -> tuple[Path, Answer, Answer]:
        folder = tmp_path_factory.mktemp("lora") / model
        tiny.save(tiny.FAMILIES[model](), folder)
        return folder, *run_ranks(1, one_process, folder, folder)[0]

    return of


def peft_factors(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """HF tensor -> A, B, float64, as PEFT would find them."""
    saved = load_file(folder / "adapter" / "adapter_model.safetensors")
    modules = {name.removesuffix(".lora_A.weight") for name in saved if "lora_A" in name}
    assert len(saved) == 2 * len(modules)
    return {
        module.removeprefix("base_model.model.") + ".weight": tuple(
            saved[f"{module}.lora_{factor}.weight"].double().numpy() for factor in "AB"
        )
        for module in modules
    }


@pytest.mark.parametrize("model", list(LAYOUTS))
def test_the_gradient_is_that_of_full_training(model: str, measured: Callable) -> None:
    folder, adapted, full = measured(model)
    factors = peft_factors(folder)
    assert len(adapted.gradients) == 2 * len(factors)
    for name, (a, b) in factors.items():
        assert np.abs(b).max() > 0.1
        gradient = full.gradients[name].astype(np.float64)
        for factor, expected in (("A", LORA.scale * b.T @ gradient), ("B", LORA.scale * gradient @ a.T)):
            found = adapted.gradients[f"base_model.model.{name.removesuffix('.weight')}.lora_{factor}.weight"]
            assert np.linalg.norm(found - expected) < BOUND * np.linalg.norm(expected), (name, factor)


@pytest.mark.parametrize("model", list(LAYOUTS))
def test_exported_weights_are_base_and_adapter(model: str, measured: Callable) -> None:
    folder, _, _ = measured(model)
    base, merged = (load_file(path / "model.safetensors") for path in (folder, folder / "merged"))
    factors = peft_factors(folder)
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert config["r"] == LORA.rank and config["lora_alpha"] == LORA.alpha
    assert {name.split(".")[-2] for name in factors} == set(config["target_modules"])
    for name, weight in merged.items():
        expected = base[name].double().numpy()
        if name in factors:
            a, b = factors.pop(name)
            expected += config["lora_alpha"] / config["r"] * b @ a
        np.testing.assert_allclose(weight.double().numpy(), expected, rtol=0, atol=1e-6)
    assert factors == {}


@pytest.mark.parametrize("model", list(LAYOUTS))
def test_every_layout_gives_the_answer_of_one_process(model: str, measured: Callable) -> None:
    _check_layouts(LAYOUTS[model], *measured(model)[:2])


@pytest.mark.long
@pytest.mark.parametrize("model", list(MORE))
def test_so_does_every_other_layout(model: str, measured: Callable) -> None:
    _check_layouts(MORE[model], *measured(model)[:2])


def in_bfloat16(model: Path) -> None:
    """The weights are one rounding of base and adapters, whatever the step."""
    initialize_distributed(ParallelConfig(), seed=1)
    trainer = new_trainer(model, ParallelConfig(precision="bfloat16"))
    assert trainer.lora
    first = [base.clone() for base in trainer.lora.base.tensors]
    batch = sequences(EXPERTS[model.name])
    norms = [trainer.update(batch, SftLoss(), step)["grad_norm"] for step in range(3)]
    assert min(norms) > 0
    for adapter, base, was in zip(trainer.lora.adapters, trainer.lora.base.tensors, first, strict=True):
        assert base.dtype == adapter.weight.dtype == torch.bfloat16 and adapter.b.dtype == torch.float32
        assert torch.equal(base, was)
        assert not torch.equal(base, adapter.weight)
        expected = base.double()
        for number, runs in enumerate(adapter.shard.rows()):
            a = adapter.a[number * LORA.rank : (number + 1) * LORA.rank].double()
            for run in runs:
                expected[run] += LORA.scale * adapter.b[run].double() @ a
        unequal = (expected.bfloat16() != adapter.weight).float().mean()
        assert unequal < 1e-3  # where float32 and float64 round to two sides of a bfloat16


def test_in_bfloat16_rounding_does_not_add_up(measured: Callable) -> None:
    run_ranks(1, in_bfloat16, measured("llama")[0])


def carried(model: Path, folder: Path) -> np.ndarray:
    """Saves itself after one update, and makes another. Its moments are cut over data parallel ranks."""
    initialize_distributed(ParallelConfig(expert=2), seed=1)
    trainer, batch = moved(new_trainer(model, ParallelConfig(expert=2))), sequences(EXPERTS[model.name])
    trainer.update(batch, SftLoss(), 0)
    folder.mkdir(exist_ok=True)
    checkpoint.save(trainer, folder)
    trainer.update(batch, SftLoss(), 1)
    return np.concatenate(trainer.log_probs(batch))


def continued(model: Path, folder: Path, parallel: ParallelConfig, other: Path) -> tuple[np.ndarray, str]:
    """The log-probs after the second update in another layout, and what a trainer of another base is told."""
    initialize_distributed(parallel, seed=2)
    trainer, batch = new_trainer(other, parallel), sequences(EXPERTS[model.name])
    with pytest.raises(UserError) as refusal:
        checkpoint.load(trainer, folder)
    trainer.load_hf(model)
    checkpoint.load(trainer, folder)
    trainer.update(batch, SftLoss(), 1)
    return np.concatenate(trainer.log_probs(batch)), str(refusal.value)


@pytest.mark.long
def test_a_checkpoint_has_the_adapters_alone_and_goes_on_in_any_layout(measured: Callable, tmp_path: Path) -> None:
    model, saved = measured("nemotron_h")[0], tmp_path / "saved"
    expected = run_ranks(2, carried, model, saved)[0]
    layout = ParallelConfig(**TP2, expert_tensor=2)
    for found, refusal in run_ranks(2, continued, model, saved, layout, model / "merged"):
        np.testing.assert_allclose(found, expected, atol=1e-4)
        assert "base of the adapters" in refusal
    factors = set(load_file(model / "adapter" / "adapter_model.safetensors"))
    states = {f"optimizer.state.{name}.{factor}" for name in ("param", "exp_avg", "exp_avg_sq") for factor in factors}
    found = set(FileSystemReader(saved).read_metadata().state_dict_metadata)
    assert {name for name in found if not name.startswith("common_state")} == factors | states


def _check_layouts(layouts: dict[str, tuple[int, ParallelConfig]], folder: Path, expected: Answer) -> None:
    for world in {ranks for ranks, _ in layouts.values()}:
        own = {name: parallel for name, (ranks, parallel) in layouts.items() if ranks == world}
        ranks = run_ranks(world, outcomes, folder, own, expected)
        for layout in own:
            for worst, norm, after, _, unplanned in (rank[layout] for rank in ranks):
                assert worst < (BOUND, "") and norm < BOUND and after < 1e-4, (layout, worst, norm, after)
                assert unplanned < 4096  # padding of buffers
            assert set.union(*(rank[layout][3] for rank in ranks)) == set(expected.gradients)
