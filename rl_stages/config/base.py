"""What a cascade starts from, and how each of its stages is scored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cascade_rl.rl_stages.config.node import Node, at_least, require, share


@dataclass(frozen=True, kw_only=True)
class BaseModel(Node):
    """What the first stage starts from: exactly one of

    hf         folder of a Hugging Face checkpoint (config.json, safetensors, tokenizer)
    hf_config  content of a config.json: a random model of that shape is made on the spot

    published  name in engine/models/published of the config.json that `hf` has: what a dry run and a plan read where
               the checkpoint is not at hand
    """

    hf: str | None = None
    hf_config: Mapping[str, Any] | None = None
    published: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("hf", "hf_config") if getattr(self, name) is not None]
        require(len(given) == 1, "base", "exactly one of hf and hf_config", " and ".join(given) or "neither")


@dataclass(frozen=True, kw_only=True)
class Evaluation(Node):
    """Held-out scores of all domains, taken before and after each stage. Temperature 0 is greedy.

    unmeasured   domains that stages may train without a held-out score, since none of their answers has one alone
    max_infrastructure_failures   largest share of a domain's answers that may stay without a score
    """

    domains: tuple[str, ...]
    prompts_per_domain: int
    max_new_tokens: int
    unmeasured: tuple[str, ...] = ()
    temperature: float = 1.0
    max_infrastructure_failures: float = 0.1

    def __post_init__(self) -> None:
        at_least(1, "evaluation", self, "prompts_per_domain", "max_new_tokens")
        share("evaluation", self, "max_infrastructure_failures")
        require(len(self.domains) > 0, "evaluation.domains", "at least one domain", self.domains)
        require(self.temperature >= 0, "evaluation.temperature", "0 or more", self.temperature)


BASE, BEST = "base", "best"  # the names that no stage can have


def is_folder(teacher: str) -> bool:
    """Whether a model that a stage reads is a Hugging Face folder, and not the name of a stage."""
    return "/" in teacher
