"""A model folder that answers tasks: the options of its engines, and the engines with the judges of their answers."""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import RolloutConfig

if TYPE_CHECKING:
    from cascade_rl.rl_stages.scoring.answering import Answering
    from cascade_rl.rl_stages.scoring.judge import MakeVerifier

PROMPT_ROOM = 4096  # tokens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    parser.add_argument("--answers", **number, required=True, help="answers to each task")
    parser.add_argument("--max-new-tokens", **number, required=True, help="tokens of an answer")
    named = "a python:, nemo-gym: or verifiers: reward that rows may name; can be repeated (default: none)"
    parser.add_argument("--reward", action="append", default=[], metavar="NAME", help=named)
    parser.add_argument("--temperature", type=float, default=1.0, metavar="X", help="default: 1")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="X", help="default: 1")
    longest = f"tokens of prompt and answer (default: those of an answer and {PROMPT_ROOM})"
    parser.add_argument("--max-model-len", **number, help=longest)
    parser.add_argument("--engines", **number, default=1, help="vLLM engines on this node (default: 1)")
    parser.add_argument("--tensor", **number, default=1, help="tensor parallel workers of each (default: 1)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="default: float32")
    parser.add_argument("--max-num-seqs", **number, default=64, help="answers that an engine samples at once")
    parser.add_argument("--kv-cache-mib", **number, default=1024, help="KV cache of each worker (default: 1024)")


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """What the answers depend on, besides model and tasks."""
    return {name: getattr(options, name) for name in ("answers", "max_new_tokens", "temperature", "top_p")}


@contextmanager
def answering(
    model: Path, options: argparse.Namespace, log: Path, makers: "Mapping[str, MakeVerifier] | None" = None
) -> "Iterator[Answering]":
    """Starts the engines with the model's weights. Raises UserError for a folder without any."""
    from cascade_rl.engine.core.quiet_libraries import quiet_libraries

    quiet_libraries()
    from transformers import AutoTokenizer

    from cascade_rl.engine.core.rollouts import Sampling
    from cascade_rl.engine.rollout.client import RolloutEngine
    from cascade_rl.rl_stages.scoring.answering import Answering
    from cascade_rl.rl_stages.scoring.episodes import Episodes
    from cascade_rl.rl_stages.scoring.judge import Judge

    weights = _weights(model)
    tokenizer, config = AutoTokenizer.from_pretrained(model), _config(options)
    sampling = Sampling(
        options.max_new_tokens,
        options.temperature,
        options.top_p,
        (tokenizer.eos_token_id,),
        max_total_tokens=config.max_model_len,
    )
    room = 2 * config.engines * config.max_num_seqs
    with (
        RolloutEngine(model, config, seed=0, log_path=str(log)) as engine,
        Judge(tokenizer, makers) as judge,
        Episodes(tokenizer) as episodes,
    ):
        engine.update_weights(weights, version=0)
        yield Answering(engine, judge, episodes, tokenizer, sampling, options.answers, room, config.max_model_len)


def _config(options: argparse.Namespace) -> RolloutConfig:
    return RolloutConfig(
        engines=options.engines,
        tensor=options.tensor,
        max_model_len=options.max_model_len or options.max_new_tokens + PROMPT_ROOM,
        max_num_seqs=options.max_num_seqs,
        kv_cache_mib=options.kv_cache_mib,
        dtype=options.dtype,
        replay_routes=False,
    )


def _weights(folder: Path) -> Path:
    for name in ("model.safetensors.index.json", "model.safetensors"):
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder}: expected a Hugging Face folder with model.safetensors or its index; found neither")
