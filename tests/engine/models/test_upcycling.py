"""An upcycled model is its dense model: in transformers, in Megatron, until the first step."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.engine.models import read_config
from cascade_rl.engine.models.hf_image import read_checkpoint
from cascade_rl.engine.models.upcycling import upcycle
from cascade_rl.engine.train.losses import SftLoss
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.launchers.cli.main import _run
from tests.engine.models import tiny
from tests.gloo import run_ranks

EXPERTS, TOPK, LAYERS = 8, 3, 2


@pytest.fixture(scope="module", params=[False, True], ids=["head", "tied"])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    tiny.save(tiny.qwen3(tie_word_embeddings=request.param), root / "dense")
    (root / "dense" / "tokenizer.json").write_text("{}")
    arguments = ["upcycle", str(root / "dense"), str(root / "sparse"), "--experts", "8", "--topk", "3"]
    assert _run(arguments) == 0
    return root / "dense", root / "sparse"


def sequences() -> list[TrainSequence]:
    rng = np.random.default_rng(5)
    tokens = [rng.integers(0, tiny.VOCABULARY, length) for length in (24, 9, 17)]
    return [TrainSequence(token_ids=ids, loss_mask=np.ones(len(ids) - 1, np.bool_)) for ids in tokens]


def test_transformers_computes_the_logits_of_the_dense_model(folders: tuple[Path, Path]) -> None:
    dense, sparse = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for folder in folders)
    assert type(sparse).__name__ == "Qwen3MoeForCausalLM"
    assert sparse.num_parameters() > 2 * dense.num_parameters()
    ids = torch.randint(0, tiny.VOCABULARY, (2, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(sparse(ids).logits, dense(ids).logits, atol=1e-5, rtol=0)


def policy(folder: Path) -> Trainer:
    initialize_distributed(ParallelConfig(), seed=1)
    optimizer = OptimizerConfig(lr=1e-3)
    made = Trainer(read_config(folder), ParallelConfig(), optimizer, total_steps=2, token_budget=64, seed=1)
    made.load_hf(folder)
    return made


def dense_log_probs(folder: Path) -> np.ndarray:
    return np.concatenate(policy(folder).log_probs(sequences()))


def trained(folder: Path) -> tuple[np.ndarray, list[dict[str, float]], float, np.ndarray]:
    """Log-probs; largest gradients of the first two updates; how far apart two experts then are; tokens per expert."""
    sparse = policy(folder)
    before = np.concatenate(sparse.log_probs(sequences()))
    gradients = []
    for step in range(2):
        sparse.update(sequences(), SftLoss(), step)
        largest = {"router": 0.0, "experts": 0.0}
        for name, parameter in sparse.module.named_parameters():
            for part in largest:
                if f"mlp.{part}." in name:
                    largest[part] = max(largest[part], float(parameter.main_grad.abs().max()))
        gradients.append(largest)
    first, second = (sparse.module.get_parameter(f"decoder.layers.1.mlp.experts.linear_fc1.weight{i}") for i in (0, 1))
    return before, gradients, float((first - second).abs().max()), sparse.expert_tokens


def test_megatron_computes_the_same_and_the_experts_diverge_in_training(folders: tuple[Path, Path]) -> None:
    [dense], [(sparse, gradients, apart, tokens)] = (
        run_ranks(1, measure, folder) for measure, folder in zip((dense_log_probs, trained), folders, strict=True)
    )
    np.testing.assert_allclose(sparse, dense, atol=1e-5)
    assert apart > 1e-4
    # equal experts give a router nothing to choose between; after a step they differ
    assert gradients[0]["router"] < 1e-5 * gradients[0]["experts"]
    assert gradients[1]["router"] > 1e-3 * gradients[1]["experts"]
    assert (tokens > 0).mean() > 0.8


def test_every_expert_is_the_dense_mlp_and_the_gates_are_random(folders: tuple[Path, Path]) -> None:
    dense, sparse = (read_checkpoint(folder) for folder in folders)
    for layer in range(LAYERS):
        mlp = f"model.layers.{layer}.mlp"
        for name in ("gate_proj.weight", "up_proj.weight", "down_proj.weight"):
            copies = [sparse[full].view(full) for full in (f"{mlp}.experts.{i}.{name}" for i in range(EXPERTS))]
            assert all(torch.equal(copy, dense[f"{mlp}.{name}"].view(f"{mlp}.{name}")) for copy in copies)
    gates = [sparse[name].view(name) for name in sparse if name.endswith("mlp.gate.weight")]
    assert [gate.shape for gate in gates] == [(EXPERTS, tiny.SIZES["hidden_size"])] * LAYERS
    assert torch.stack(gates).std().item() == pytest.approx(0.02, rel=0.1)
    assert not torch.equal(*gates)


def test_the_folder_is_whole_and_the_seed_decides(folders: tuple[Path, Path], tmp_path: Path) -> None:
    dense, sparse = folders
    config = json.loads((sparse / "config.json").read_text())
    assert (config["num_experts"], config["num_experts_per_tok"], config["norm_topk_prob"]) == (EXPERTS, TOPK, True)
    assert (sparse / "tokenizer.json").read_text() == "{}"
    assert not (sparse.parent / "sparse.partial").exists()
    for seed in (1, 2):
        upcycle(dense, tmp_path / str(seed), experts=EXPERTS, topk=TOPK, seed=seed)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (sparse, tmp_path / "1", tmp_path / "2")]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize(("experts", "topk"), [(4, 5), (4, 1)])
def test_a_topk_that_cannot_be_is_refused(folders: tuple[Path, Path], tmp_path: Path, experts: int, topk: int) -> None:
    with pytest.raises(UserError, match=f"2 <= topk <= experts, found topk = {topk}, experts = {experts}"):
        upcycle(folders[0], tmp_path / "out", experts=experts, topk=topk)
    assert os.listdir(tmp_path) == []


def test_other_families_and_existing_folders_are_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"starts from a Qwen3ForCausalLM; config\.json has Qwen3MoeForCausalLM"):
        upcycle(folders[1], tmp_path / "out", experts=4, topk=2)
    with pytest.raises(UserError, match="exists: remove it"):
        upcycle(folders[0], tmp_path, experts=4, topk=2)
