"""What a cascade starts from, and how each of its stages is scored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cascade_rl.rl_stages.config.benchmark_suite import BenchmarkSuite
from cascade_rl.rl_stages.config.node import Node, at_least, require, share
from cascade_rl.rl_stages.config.room import Overlong


@dataclass(frozen=True, kw_only=True)
class BaseModel(Node):
    """What the first stage starts from: `hf` or `hf_config`, exactly one of them.

    hf         folder of a Hugging Face checkpoint (config.json, safetensors, tokenizer)
    hf_config  content of a config.json; the run makes a random model of that shape

    tokenizer  folder of the tokenizer of a random model; None: the run trains one on the prompts of its stages
    published  file name in engine/models/published that equals the config.json of `hf`. A dry run and a plan read it
               where the checkpoint is not available

    chat_template   name of a template in rl_stages/data/chat_templates, or path of a .jinja file. Every stage renders
                    with it, and every export holds it. None is the template of the model folder
    """

    hf: str | None = None
    hf_config: Mapping[str, Any] | None = None
    published: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("hf", "hf_config") if getattr(self, name) is not None]
        require(len(given) == 1, "base", "exactly one of hf and hf_config", " and ".join(given) or "neither")
        new = self.tokenizer is None or self.hf is None
        require(new, "base.tokenizer", "none with base.hf, which has a tokenizer", self.tokenizer)


HELDOUT_FRACTION = 0.1


@dataclass(frozen=True, kw_only=True)
class Evaluation(Node):
    """Held-out scores of all domains, taken before and after each stage. A cascade that only fine-tunes, or trains
    reward models, needs no domains.

    domains      whose answers are scored
    prompts_per_domain   held-out prompts of each, one answer to each, or preference pairs of a reward model; all if
                 there are fewer
    max_new_tokens   tokens that an answer may have
    temperature  of its samples; 0 is greedy
    heldout_fraction   share of all prompts of RL, preference pairs and lessons that no stage trains on, chosen by a
                 hash of the prompt, where the stage names no `heldout` rows. Not in the papers, which evaluate on
                 benchmarks
    unmeasured   domains that stages may train without a held-out score, because an answer is scored only relative to
                 other answers or by a judge model
    max_infrastructure_failures   largest share of a domain's answers that may stay without a score
    min_answer_tokens, overlong_prompts   as in a stage
    suites       benchmarks that are measured too, several answers to each prompt, with confidence intervals
    """

    domains: tuple[str, ...] = ()
    prompts_per_domain: int = 256
    max_new_tokens: int = 0
    heldout_fraction: float = HELDOUT_FRACTION
    unmeasured: tuple[str, ...] = ()
    temperature: float = 1.0
    max_infrastructure_failures: float = 0.1
    min_answer_tokens: int = 1
    overlong_prompts: Overlong = "drop"
    suites: tuple[BenchmarkSuite, ...] = ()

    def __post_init__(self) -> None:
        require(bool(self.domains) or not self.suites, "evaluation.domains", "at least one, with suites", self.domains)
        at_least(1, "evaluation", self, "prompts_per_domain", "min_answer_tokens")
        at_least(min(1, len(self.domains)), "evaluation", self, "max_new_tokens")
        share("evaluation", self, "max_infrastructure_failures")
        fraction = self.heldout_fraction
        require(0 < fraction < 1, "evaluation.heldout_fraction", "more than 0 and less than 1", fraction)
        require(self.temperature >= 0, "evaluation.temperature", "0 or more", self.temperature)


BASE, BEST = "base", "best"  # reserved: no stage can have these names


def is_folder(teacher: str) -> bool:
    """Whether the name means a Hugging Face folder rather than a stage."""
    return "/" in teacher
