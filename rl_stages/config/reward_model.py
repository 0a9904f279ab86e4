"""The models that judge the answers of a stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cascade_rl.rl_stages.config.node import Node, at_least, require


@dataclass(frozen=True)
class LengthTerms:
    """Weights of what conciseness adds to a score; 0 turns a term off. Lengths are characters.

    Defaults: Nano-v3's report, which Cascade 2 says that it follows ("the same as Nano-v3"). Super's released
    configuration has .3, .35, .5, .5, and a style term, which is not built; no released one is Cascade 2's.

    reasoning, answer              of the group-relative terms
    reasoning_bonus, answer_bonus  for the shortest of the group, if its score is among the best
    top_fraction                   how much of the group the best are
    """

    reasoning: float = 0.5
    answer: float = 0.5
    reasoning_bonus: float = 0.5
    answer_bonus: float = 0.5
    top_fraction: float = 0.2


PromptForm = Literal["instructed", "plain", "roles"]
"""How the model is asked: "instructed", one that was not trained for it; "plain", one trained on the same sections
without the instructions (`generate:genrm`); "roles", one whose chat template has the roles `response_1`, `response_2`
and `principle`, such as nvidia/Qwen3-Nemotron-235B-A22B-GenRM."""


@dataclass(frozen=True, kw_only=True)
class GenRm(Node):
    """How a generative reward model compares the answers of a group (facts/paper.md 5.4).

    prompt   "instructed", "plain" or "roles": see rl_stages/rewards/reward_models/genrm.py
    offsets  of circular pairs, such as 1 (Nano-v3) or 1,2; None: all pairs, as in Cascade 2
    terms    what conciseness adds
    """

    prompt: PromptForm = "instructed"
    offsets: tuple[int, ...] | None = None
    terms: LengthTerms = field(default_factory=LengthTerms)


@dataclass(frozen=True, kw_only=True)
class RewardModel(Node):
    """The model that judges the answers of a stage. Sampling: that of the GenRM in NeMo-Gym (facts/paper.md 5.4).

    kind     "server": OpenAI-compatible, at `url`; "engine": one vLLM engine of our own on rank 0's node, beside the
             trainer's; "bradley_terry": what a reward_model stage trained, in a process of its own
    model    the name by which the server knows it; otherwise an earlier stage, or a folder, written with a "/"
    shaped   of "bradley_terry": tanh of the z-scores in a group, which Cascade 1 needs for weak reward models
    bonus    of "bradley_terry": the domain's verifier scores, and a right answer gets the sigmoid of its z-score beside
             its 1, as in IF-RL of Cascade 1's thinking models; otherwise the model scores alone
    api_key_env       environment variable that holds the server's key; None: it takes none
    deadline_seconds  of all that is asked about one group, and of each question
    retries           of a server that fails
    concurrency       questions asked at once
    """

    kind: Literal["server", "engine", "bradley_terry"]
    model: str
    shaped: bool = False
    bonus: bool = False
    url: str | None = None
    api_key_env: str | None = None
    deadline_seconds: float = 600.0
    retries: int = 3
    concurrency: int = 64
    max_tokens: int = 16_384
    temperature: float = 0.6
    top_p: float = 0.95
    genrm: GenRm = field(default_factory=GenRm)

    @property
    def folder_or_stage(self) -> str | None:
        """Where its weights are found; None for a server."""
        return None if self.kind == "server" else self.model

    def __post_init__(self) -> None:
        right = (self.url is not None) == (self.kind == "server")
        require(right, "reward_model.url", "one for a server, and for nothing else", self.url)
        alone = not self.bonus or (self.kind == "bradley_terry" and not self.shaped)
        require(alone, "reward_model.bonus", "it with bradley_terry alone, and not shaped", self.bonus)
        at_least(1, "reward_model", self, "concurrency", "max_tokens")
        at_least(0, "reward_model", self, "retries", "temperature")
        require(self.deadline_seconds > 0, "reward_model.deadline_seconds", "more than 0", self.deadline_seconds)
        offsets = self.genrm.offsets
        wide = offsets is None or (len(offsets) > 0 and min(offsets) > 0)
        require(wide, "reward_model.genrm.offsets", "numbers above 0, or none for all pairs", offsets)
