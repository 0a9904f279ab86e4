"""What flows between sampler, verifier and trainer. Token ids are the truth; text is derived from them.

At run time this imports the standard library alone: launchers, which must start at once, and verifiers use it too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


class Outcome(StrEnum):
    """The terminal states of a sample. An infrastructure failure masks the sample and never becomes reward 0
    (verl#5635, NeMo-RL#3470)."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    WRONG_FORMAT = "wrong_format"
    INFRASTRUCTURE_FAILURE = "infrastructure_failure"


MAX_TOP_K = 64
"""The largest top_k of samples that are trained on. The trainer's log-probs are over the tokens that the sampler chose
from, so these are recorded at each position. top_p alone does not bound their number: where the distribution over a
vocabulary of 131,072 is flat, it keeps more than 100,000, half a megabyte for one token. 64 ids take about as much as
a token's routes in a 30B-A3B model."""


@dataclass(frozen=True)
class Sampling:
    """Sampling settings, the one object that sampler and trainer's log-probs both read (slime#557).

    The sampler divides the logits by the temperature and keeps the top_k largest. Of these it keeps the fewest whose
    probabilities reach top_p together, and samples from their softmax. Log-probs are those of this distribution.

    max_new_tokens  tokens that the model may generate in a sample, over all its turns
    max_total_tokens  limit for prompt, answer and environment's replies together; None: that of the engines
    temperature     divisor of the logits; 1.0: the model's own distribution
    top_p           share of the probability that the kept tokens have together, in (0, 1]
    stop_token_ids  tokens that end an answer. In a stage: besides the tokenizer's end of sequence
    max_turns       limit for a sample with an environment; 200 is the limit of agentic SWE RL in Cascade 2
                    (arXiv 2603.19220)
    top_k           0: the whole vocabulary. Above 0, the kept tokens are recorded (`Kept`)
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    max_turns: int = 200
    top_k: int = 0
    max_total_tokens: int | None = None


@dataclass(frozen=True)
class Request:
    """Asks for one sample, or for its next turn. `seed` makes it repeatable whatever else is in the batch.

    begun  what has been sampled of it already: it goes on from there, with the noise that it would have had
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    begun: Rollout | None = field(default=None, compare=False)

    @property
    def begun_ids(self) -> list[int]:
        return self.begun.token_ids.tolist() if self.begun else []


@dataclass(frozen=True)
class Kept:
    """The tokens that top-k and top-p kept at each position.

    ids     int32 [sum of counts], position after position, the likeliest first; the sampled token is among them
    counts  int32 [positions], 0 where the whole vocabulary was kept and where nothing was sampled
    """

    ids: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class Passport:
    """What an engine says of one turn that it has sampled (engine/core/passport.py).

    start, end   places of the tokens that it generated, among all tokens of the sample, prompt included
    seed, temperature   with which they were sampled
    cache        weight version of the oldest keys, values and states that it may have read: that of the last token,
                 unless the engine keeps them when new weights come
    tokens       CRC-32 of all token ids before `end`
    logprobs     that of the log-probs of its tokens
    routes       that of the experts which its tokens were routed to when they were first computed; 0 without any
    """

    start: int
    end: int
    seed: int
    temperature: float
    cache: int
    tokens: int
    logprobs: int
    routes: int


PART = "part"


@dataclass(frozen=True)
class Rollout:
    """One sample. Its answer is what the model generated and, between its turns, what the environment returned.

    prompt_ids  int64 [prompt]
    token_ids   int64 [answer], raw sampler ids, stop tokens included, and the ids of what the environment returned
    logprobs    float32 [answer], after temperature, top-k and top-p; 0 at environment tokens
    routes      int16 [prompt + answer - 1, moe_layers, topk], experts of each input position, or None; uint8 in a batch
                that is trained on, if the largest fits
    versions    spans (weight version, index of the first token generated with it)
    finish      "stop" or "length"; "abort" if its environment failed; PART if it is still being sampled, and this is a
                part of its turn (engine/core/parts.py)
    generated   bool [answer], False at environment tokens; None if the model generated the whole answer
    turns       number of turns of the model
    kept        for the [answer] positions; None if it was sampled without top_k, or if nothing was dropped
    passports   what the engine says of each of its turns; none from an engine that gives none
    """

    id: str
    prompt_ids: np.ndarray
    token_ids: np.ndarray
    logprobs: np.ndarray
    routes: np.ndarray | None
    versions: tuple[tuple[int, int], ...]
    finish: str
    generated: np.ndarray | None = None
    turns: int = 1
    kept: Kept | None = None
    passports: tuple[Passport, ...] = ()

    @property
    def length(self) -> int:
        """Number of tokens that the model generated."""
        return len(self.token_ids) if self.generated is None else int(self.generated.sum())

    @property
    def newest(self) -> int:
        """The weight version of the last token."""
        return self.versions[-1][0]


@dataclass(frozen=True)
class Scored:
    """The sampler's scores of a given sequence of n tokens.

    logprobs  float32 [n - 1], at temperature 1
    routes    int16 [n - 1, moe_layers, topk], experts that it chose, or None
    """

    logprobs: np.ndarray
    routes: np.ndarray | None
