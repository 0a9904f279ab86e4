"""A model of the published family, small in every width, with all kinds of its layers, and its tokenizer."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cascade_rl.engine.models import HfConfig
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.data.chat_templates import template_text

SMALL = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "full_attention_interval": 2,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "num_nextn_predict_layers": 0,  # what is made at random has none
}
LAYERS = 2
INITIAL = 0.1  # about the inverse root of the width. At the published 0.02 so narrow a model learns no context for long
# The vocabulary of Nemotron-3 is Tekken's, with these names for some of its reserved tokens. Any chat template finds
# its own marks among them.
MARKS = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>",
)  # fmt: skip
FIRST_RESERVED = 20
ENTRIES = 32_768  # of a stand-in for the tokenizer. Most of the time of so small a model is its vocabulary's
DEFAULT_TEMPLATE = "nemotron3"  # for a base that is not here and names none


def small_model(published: HfConfig, positions: int, vocabulary: int | None = None) -> HfConfig:
    """Of a hybrid model, the first layers up to the last kind that appears. `vocabulary` is its size if it is cut."""
    published = {**published, "vocab_size": vocabulary or published["vocab_size"]}
    small = {key: value for key, value in SMALL.items() if published.get(key) is not None}
    if "kv_lora_rank" in published:  # stays as it is: vLLM's kernel for the CPU has one width of latents
        small["num_key_value_heads"] = small["num_attention_heads"]
    # without a version, transformers takes any tokenizer for one of Mistral's, with a fault that this one has not
    own = {"dtype": "float32", "max_position_embeddings": positions, "transformers_version": version("transformers")}
    config = {**published, **small, **own, "initializer_range": INITIAL}
    if "hybrid_override_pattern" in published:
        pattern = published["hybrid_override_pattern"]
        length = max(pattern.index(kind) for kind in set(pattern)) + 1
        return {**config, "hybrid_override_pattern": pattern[:length], "num_hidden_layers": length}
    return {**config, "num_hidden_layers": LAYERS}


def own_tokenizer(base: BaseModel) -> Path | None:
    """The folder of the base, if its tokenizer is on this machine."""
    return Path(base.hf) if base.hf and (Path(base.hf) / "tokenizer_config.json").is_file() else None


def stand_in_tokenizer(chat_template: str | None, folder: Path) -> Path:
    """Writes the tokenizer Tekken, which ships with vLLM's dependency mistral-common: 131,072 entries.

    chat_template  as in `BaseModel`; None: that of Nemotron-3
    """
    import mistral_common
    from transformers.integrations.mistral import convert_tekken_tokenizer

    newest = max((Path(mistral_common.__file__).parent / "data").glob("tekken_*.json"))
    convert_tekken_tokenizer(str(newest)).save_pretrained(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    _rename_reserved(tokenizer)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<pad>",
        "chat_template": template_text(chat_template or DEFAULT_TEMPLATE),
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1 << 30,
    }
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    return _write(tokenizer, settings, folder)


def cut_tokenizer(whole: Path, folder: Path) -> Path:
    """Writes the first ENTRIES of a byte-pair tokenizer, which are a tokenizer too. Returns `folder`."""
    tokenizer = json.loads((whole / "tokenizer.json").read_text())
    model = tokenizer["model"]
    kept = {text: number for text, number in model["vocab"].items() if number < ENTRIES}
    merges = [(left, right) for left, right in model["merges"] if {left, right, left + right} <= kept.keys()]
    tokenizer["model"] = {**model, "vocab": kept, "merges": merges}
    folder.mkdir(parents=True)
    return _write(tokenizer, json.loads((whole / "tokenizer_config.json").read_text()), folder)


def _rename_reserved(tokenizer: dict[str, Any]) -> None:
    names = dict(enumerate(MARKS, start=FIRST_RESERVED))
    for entry in tokenizer["added_tokens"]:
        entry["content"] = names.get(entry["id"], entry["content"])
    model = tokenizer["model"]
    kept = {text: number for text, number in model["vocab"].items() if number not in names}
    model["vocab"] = kept | {mark: number for number, mark in names.items()}
    tokenizer["post_processor"] = None


def _write(tokenizer: dict[str, Any], settings: dict[str, Any], folder: Path) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
