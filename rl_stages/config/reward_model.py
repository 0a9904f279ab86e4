"""The models that judge the answers of a stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cascade_rl.rl_stages.config.node import Node, at_least, require


@dataclass(frozen=True)
class LengthTerms:
    """Weights of what conciseness adds to a score; 0 turns a term off. Lengths are characters.

    Defaults: the report of Nemotron-3-Nano (arXiv 2512.20848). Cascade 2 says that it uses "the same as Nano-v3"
    (arXiv 2603.19220). The released configuration of Nemotron-3-Super has .3, .35, .5, .5 and a style term, which is
    not implemented (NVIDIA-NeMo/RL, examples/nemo_gym/nemotron-3-super/stage3_rlhf.yaml). None of the released
    configurations is that of Cascade 2.

    reasoning, answer              weights of the group-relative terms
    reasoning_bonus, answer_bonus  for the shortest of the group, if its score is among the best
    top_fraction                   share of the group that counts as the best
    """

    reasoning: float = 0.5
    answer: float = 0.5
    reasoning_bonus: float = 0.5
    answer_bonus: float = 0.5
    top_fraction: float = 0.2


PromptForm = Literal["instructed", "plain", "roles"]
"""How the model is asked. "instructed": with instructions, for a model that was not trained to judge. "plain": the same
sections without the instructions, for a model trained on them (`generate:genrm`). "roles": for a model whose chat
template has the roles `response_1`, `response_2` and `principle`, such as nvidia/Qwen3-Nemotron-235B-A22B-GenRM."""


@dataclass(frozen=True, kw_only=True)
class GenRm(Node):
    """How a generative reward model compares the answers of a group, as in NVIDIA-NeMo/Gym,
    resources_servers/genrm_compare.

    prompt   "instructed", "plain" or "roles": see rl_stages/rewards/reward_models/genrm.py
    offsets  of circular pairs, such as 1 (Nano-v3) or 1,2; None: all pairs, as in Cascade 2 (arXiv 2603.19220)
    terms    what conciseness adds
    """

    prompt: PromptForm = "instructed"
    offsets: tuple[int, ...] | None = None
    terms: LengthTerms = field(default_factory=LengthTerms)


@dataclass(frozen=True, kw_only=True)
class RewardModel(Node):
    """The model that judges the answers of a stage. Default sampling: that of the GenRM in NVIDIA-NeMo/Gym
    (resources_servers/genrm_compare).

    kind     "server": OpenAI-compatible, at `url`. "engine": a vLLM engine of its own on rank 0's node, in addition to
             the rollout engines. "bradley_terry": a model with a scalar head, whatever its family and size. It is a
             reward_model stage, or a folder that transformers opens as a sequence classifier with one label, and each
             rank has a process with the whole model; or, with `url`, vLLM's pooling server
    url      of a server. An OpenAI-compatible one is asked at URL/chat/completions, a pooling server at URL/pooling
    model    the name by which the server knows it; otherwise an earlier stage, or a folder, written with a "/"
    shaped   "bradley_terry" only: tanh of the z-scores in a group. Cascade 1 needs it for weak reward models only
             (arXiv 2512.13607)
    bonus    "bradley_terry" only: the domain's verifier scores, and a correct answer gets 1 plus the sigmoid of its
             z-score, as in IF-RL of Cascade 1's thinking models (arXiv 2512.13607, section 4). False: the reward model
             alone scores
    api_key_env       environment variable that holds the server's key; None: the server takes no key
    deadline_seconds  for all questions about one group, and for each single question
    retries           of a failed request to the server
    concurrency       questions asked at once
    max_tokens        tokens that a judgement may have, reasoning included
    temperature       of a judgement's samples
    top_p             of a judgement's samples
    genrm             how a generative model compares the answers of a group
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
        """The stage or folder with its weights; None for a server."""
        return self.model if self.url is None else None

    def __post_init__(self) -> None:
        self._check_url()
        alone = not self.bonus or (self.kind == "bradley_terry" and not self.shaped)
        require(alone, "reward_model.bonus", "false, or kind bradley_terry without shaped", self.bonus)
        at_least(1, "reward_model", self, "concurrency", "max_tokens")
        at_least(0, "reward_model", self, "retries", "temperature")
        require(self.deadline_seconds > 0, "reward_model.deadline_seconds", "more than 0", self.deadline_seconds)
        offsets = self.genrm.offsets
        wide = offsets is None or (len(offsets) > 0 and min(offsets) > 0)
        require(wide, "reward_model.genrm.offsets", "numbers above 0, or null for all pairs", offsets)

    def _check_url(self) -> None:
        right = self.kind == "bradley_terry" or (self.url is not None) == (self.kind == "server")
        require(right, "reward_model.url", "a URL for a server, and none for an engine", self.url)
        beside = self.kind != "bradley_terry" or not (self.url or "").rstrip("/").endswith("/v1")
        expected = "the address of a pooling server without /v1, because vLLM's /pooling is beside it"
        require(beside, "reward_model.url", expected, self.url)
