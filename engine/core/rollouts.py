"""What flows between sampler, verifier and trainer. Token ids are the truth; text is derived from them.

Nothing is imported: the launcher, which answers at once, and the verifiers read these types too.
"""

from __future__ import annotations

from dataclasses import dataclass
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
"""Of samples that are learned from. The trainer's log-probs are over the tokens that the sampler drew from, so these
are recorded at each position. top_p alone does not bound them: where a vocabulary of 131,072 is flat, it keeps more
than 100,000, half a megabyte for one token. 64 ids are about what a token's routes take in a 30B-A3B model."""


@dataclass(frozen=True)
class Sampling:
    """Sampling settings, the one object that sampler and trainer's log-probs both read (slime#557).

    The sampler divides logits by the temperature, keeps the top_k largest, then of these the fewest that have the
    probability top_p together, and draws from their softmax. Log-probs are those of this distribution.

    max_new_tokens  what a sample may generate, in all its turns
    max_turns       of a sample with an environment; 200 is agentic SWE RL's of Cascade 2 (facts/paper.md 1.2)
    top_k           0: all. Above 0, the kept tokens are recorded (`Kept`)
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    max_turns: int = 200
    top_k: int = 0


@dataclass(frozen=True)
class Request:
    """One sample, or the next turn of one, to draw. `seed` makes it repeatable whatever else is in the batch."""

    id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int


@dataclass(frozen=True)
class Kept:
    """What top-k and top-p left of the vocabulary at each position.

    ids     int32 [sum of counts], position after position, the likeliest first; the drawn token is among them
    counts  int32 [positions], 0 where all of the vocabulary was left and where nothing was drawn
    """

    ids: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class Rollout:
    """One drawn sample. Its answer is what the model generated and, between its turns, what an environment showed it.

    prompt_ids  int64 [prompt]
    token_ids   int64 [answer], raw sampler ids, the stop tokens included, and the ids of what was shown
    logprobs    float32 [answer], after temperature, top-k and top-p; 0 at what was shown
    routes      int16 [prompt + answer - 1, moe_layers, topk], experts of each input position, or None
    versions    (weight version, index of the first token generated with it) spans
    finish      "stop" or "length"; "abort" where its environment failed
    generated   bool [answer], False at what was shown; None where the model generated all of it
    turns       of the model
    kept        of [answer]; None where nothing was drawn with top_k, or nothing dropped
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

    @property
    def length(self) -> int:
        """Tokens that the model generated."""
        return len(self.token_ids) if self.generated is None else int(self.generated.sum())


@dataclass(frozen=True)
class Scored:
    """The sampler's view of a given sequence of n tokens.

    logprobs  float32 [n - 1], at temperature 1
    routes    int16 [n - 1, moe_layers, topk] that it took, or None
    """

    logprobs: np.ndarray
    routes: np.ndarray | None
