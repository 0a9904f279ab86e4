"""Reads config.json. Errors name the key that is missing or not supported."""

import json
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.errors import UserError

HfConfig = dict[str, Any]


def read_config(folder: str | Path) -> HfConfig:
    """The config.json of a Hugging Face model folder. Raises UserError if there is none, or one that is no JSON."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise UserError(f"no such file: {path}. Name a Hugging Face model folder, which has a config.json")
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: expected JSON, found {error.msg}. Copy the file again") from None


def read(hf: HfConfig, *names: str) -> Any:
    """The value of the first of `names` that config.json has: transformers has renamed keys over time."""
    for name in names:
        if hf.get(name) is not None:
            return hf[name]
    raise UserError(f"config.json lacks {' (or '.join(names)}{')' * (len(names) - 1)}")


def require(hf: HfConfig, **expected: Any) -> None:
    """Raises UserError if a key is present with another value than the one that is implemented."""
    for name, value in expected.items():
        if name in hf and hf[name] != value:
            raise UserError(f"{read(hf, 'architectures')[0]} needs {name} = {value!r}; config.json has {hf[name]!r}")


LLAMA3_ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def rotary_base(hf: HfConfig) -> float:
    """theta of the rotary embeddings, as transformers 4 or 5 writes it."""
    return float(rotary_settings(hf)["rope_theta"])


def rotary_scaling(hf: HfConfig) -> dict[str, float]:
    """How Llama 3.1 to 3.3 stretch the frequencies of their rotary embeddings, by its four names; empty for plain ones.

    Raises UserError for another kind of scaling.
    """
    rope, kind = rotary_settings(hf), rotary_kind(hf)
    if kind == "default":
        return {}
    if kind != "llama3":
        known = "'default' or 'llama3'"
        raise UserError(f"rotary embeddings are supported with rope_type = {known}; config.json has {kind!r}")
    return {name: read(rope, name) for name in LLAMA3_ROPE}


def rotary_share(hf: HfConfig, *, otherwise: float = 1.0) -> float:
    """The share of a head's channels that turn with the position; `otherwise` where config.json does not say."""
    return float({**hf, **rotary_settings(hf)}.get("partial_rotary_factor", otherwise))


def rotary_kind(hf: HfConfig) -> str:
    rope = rotary_settings(hf)
    return str(rope.get("rope_type") or rope.get("type") or "default")


def rotary_settings(hf: HfConfig) -> HfConfig:
    """What transformers 5 calls rope_parameters, also of an older config.json."""
    plain = {"rope_theta": hf.get("rope_theta", 10000.0), **(hf.get("rope_scaling") or {})}
    return hf.get("rope_parameters") or plain


def head_width(hf: HfConfig) -> int:
    """Channels of one attention head."""
    return hf.get("head_dim") or read(hf, "hidden_size") // read(hf, "num_attention_heads")


def export_dtype(hf: HfConfig) -> str:
    """Name of the dtype of the exported weights: "bfloat16", "float32", ..."""
    return hf.get("dtype") or hf.get("torch_dtype") or "float32"
