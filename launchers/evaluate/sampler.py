"""A model folder that answers tasks: the options of its engines, and the engines with the judges of their answers."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.rl_stages.benchmarks.benchmark import Sampled

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from cascade_rl.engine.core.rollouts import Sampling
    from cascade_rl.engine.rollout.client import RolloutEngine
    from cascade_rl.launchers.evaluate.test_time.methods import Method
    from cascade_rl.launchers.evaluate.test_time.play import Playing
    from cascade_rl.rl_stages.scoring.answering import Answering
    from cascade_rl.rl_stages.scoring.episodes import Episodes
    from cascade_rl.rl_stages.scoring.judge import Judge, MakeVerifier

PROMPT_ROOM = 4096  # tokens
STANDARD: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    parser.add_argument("--answers", **number, help="answers to each task")
    parser.add_argument("--max-new-tokens", **number, help="tokens of an answer")
    parser.add_argument("--temperature", type=float, metavar="X", help="default: 1")
    parser.add_argument("--top-p", type=float, metavar="X", help="default: 1")
    longest = f"tokens of prompt and answer (default: those of an answer and {PROMPT_ROOM})"
    parser.add_argument("--max-model-len", **number, help=longest)
    parser.add_argument("--engines", **number, default=1, help="vLLM engines on this node (default: 1)")
    parser.add_argument("--tensor", **number, default=1, help="tensor parallel workers of each (default: 1)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="default: float32")
    parser.add_argument("--max-num-seqs", **number, default=64, help="answers that an engine samples at once")
    parser.add_argument("--kv-cache-mib", **number, default=1024, help="KV cache of each worker (default: 1024)")


def given(options: argparse.Namespace) -> dict[str, Any]:
    """What the command line says of sampling."""
    named = {name: getattr(options, name) for name in Sampled._fields}
    return {name: value for name, value in named.items() if value is not None}


def total_tokens(sampled: Sampled, longest: int | None) -> int:
    """Those of prompt and answer together."""
    return longest or sampled.max_new_tokens + PROMPT_ROOM


def sampled_of(options: argparse.Namespace) -> Sampled:
    """Raises UserError for what the command line has to say and does not."""
    return Sampled.of({**STANDARD, **given(options)})


@dataclass(frozen=True)
class Started:
    """Engines with the model's weights, and the judges of its answers. `longest`: tokens of prompt and answer together;
    None: those of what is asked."""

    engine: "RolloutEngine"
    judge: "Judge"
    episodes: "Episodes"
    tokenizer: "PreTrainedTokenizerBase"
    config: RolloutConfig
    longest: int | None

    def answering(self, sampled: Sampled) -> "Answering":
        from cascade_rl.rl_stages.scoring.answering import Answering

        sampling = self._sampling(sampled)
        parts = self.engine, self.judge, self.episodes, self.tokenizer
        return Answering(*parts, sampling, sampled.answers, self._room, self._longest(sampled))

    def playing(self, sampled: Sampled, method: "Method") -> "Playing":
        from cascade_rl.launchers.evaluate.test_time.play import Playing

        parts = self.engine, self.judge, self.tokenizer
        return Playing(*parts, self._sampling(sampled), method, sampled.answers, self._room)

    def _longest(self, sampled: Sampled) -> int:
        return total_tokens(sampled, self.longest)

    @property
    def _room(self) -> int:
        return 2 * self.config.engines * self.config.max_num_seqs

    def _sampling(self, sampled: Sampled) -> "Sampling":
        from cascade_rl.engine.core.rollouts import Sampling

        stop, longest = (self.tokenizer.eos_token_id,), self._longest(sampled)
        return Sampling(sampled.max_new_tokens, sampled.temperature, sampled.top_p, stop, max_total_tokens=longest)


@contextmanager
def engines(
    model: Path,
    options: argparse.Namespace,
    asked: Sequence[Sampled],
    log: Path,
    makers: "Mapping[str, MakeVerifier] | None" = None,
) -> Iterator[Started]:
    """Starts the engines with the model's weights. Raises UserError for a folder without any.

    asked  all that they will be asked for
    """
    from cascade_rl.engine.core.quiet_libraries import quiet_libraries

    quiet_libraries()
    from transformers import AutoTokenizer

    from cascade_rl.engine.rollout.client import RolloutEngine
    from cascade_rl.rl_stages.scoring.episodes import Episodes
    from cascade_rl.rl_stages.scoring.judge import Judge

    weights, tokenizer = _weights(model), AutoTokenizer.from_pretrained(model)
    config = _config(options, max(total_tokens(sampled, options.max_model_len) for sampled in asked))
    with (
        RolloutEngine(model, config, seed=0, log_path=str(log)) as engine,
        Judge(tokenizer, makers) as judge,
        Episodes(tokenizer) as episodes,
    ):
        engine.update_weights(weights, version=0)
        yield Started(engine, judge, episodes, tokenizer, config, options.max_model_len)


def _config(options: argparse.Namespace, longest: int) -> RolloutConfig:
    return RolloutConfig(
        engines=options.engines,
        tensor=options.tensor,
        max_model_len=longest,
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
