"""A random model of Nemotron-3-Nano's architecture with every kind of its layers, in widths that every kernel takes."""

import json
from pathlib import Path

import cascade_rl.engine.models
from cascade_rl.engine.models import read_config

PUBLISHED = Path(cascade_rl.engine.models.__file__).parent / "published" / "nemotron_3_nano_30b_a3b"

WIDTHS = {
    "hybrid_override_pattern": "MEM*E",
    "num_hidden_layers": 5,
    "vocab_size": 4096,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 256,
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
    "n_groups": 2,
    "ssm_state_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "moe_shared_expert_intermediate_size": 128,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}


def write_config(folder: Path, dtype: str) -> Path:
    """The model's folder, as an engine gets it: config.json alone."""
    config = read_config(PUBLISHED) | WIDTHS | {"dtype": dtype}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
