"""A model of the published family, small in every width, with all kinds of its layers and its whole vocabulary."""

import json
from importlib.metadata import version
from pathlib import Path

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
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
}
LAYERS = 2
# The vocabulary of Nemotron-3 is Tekken's, with these names for some of its reserved tokens. Any chat template finds
# its own marks among them.
MARKS = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>",
)  # fmt: skip
FIRST_RESERVED = 20
DEFAULT_TEMPLATE = "nemotron3"  # for a base that is not here and names none


def small_model(published: HfConfig, positions: int) -> HfConfig:
    """Of a hybrid model, the first layers up to the last kind that appears."""
    small = {key: value for key, value in SMALL.items() if key in published}
    # without a version, transformers takes any tokenizer for one of Mistral's, with a fault that this one has not
    own = {"dtype": "float32", "max_position_embeddings": positions, "transformers_version": version("transformers")}
    config = {**published, **small, **own}
    if "hybrid_override_pattern" in published:
        pattern = published["hybrid_override_pattern"]
        length = max(pattern.index(kind) for kind in set(pattern)) + 1
        return {**config, "hybrid_override_pattern": pattern[:length], "num_hidden_layers": length}
    return {**config, "num_hidden_layers": LAYERS}


def stand_in_tokenizer(chat_template: str, folder: Path) -> Path:
    """Writes the tokenizer Tekken, which ships with vLLM's dependency mistral-common, with a chat template.

    It stands in for a published tokenizer that is not on this machine; 131,072 entries.
    """
    import mistral_common
    from transformers.integrations.mistral import convert_tekken_tokenizer

    [newest] = sorted((Path(mistral_common.__file__).parent / "data").glob("tekken_*.json"))[-1:]
    convert_tekken_tokenizer(str(newest)).save_pretrained(folder)
    _rename_reserved(folder / "tokenizer.json")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<pad>",
        "chat_template": chat_template, "clean_up_tokenization_spaces": False, "model_max_length": 1 << 30,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    return folder


def _rename_reserved(path: Path) -> None:
    tokenizer = json.loads(path.read_text())
    vocabulary, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    names = {vocabulary_id: mark for vocabulary_id, mark in enumerate(MARKS, start=FIRST_RESERVED)}
    for entry in added:
        entry["content"] = names.get(entry["id"], entry["content"])
    kept = {text: number for text, number in vocabulary.items() if number not in names}
    tokenizer["model"]["vocab"] = kept | {mark: number for number, mark in names.items()}
    tokenizer["post_processor"] = None
    path.write_text(json.dumps(tokenizer))


def ready_tokenizer(base: BaseModel, folder: Path) -> tuple[Path, str]:
    """The folder of the base's own tokenizer, or of one that stands in for it, and which one it is."""
    if base.hf and (Path(base.hf) / "tokenizer_config.json").is_file():
        return Path(base.hf), f"that of {base.hf}"
    template = template_text(base.chat_template or DEFAULT_TEMPLATE)
    return stand_in_tokenizer(template, folder), "Tekken, 131,072 entries, stands in for that of the base"
