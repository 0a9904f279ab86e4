"""What a verifier says about one answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from cascade_rl.engine.core.rollouts import Outcome

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

REASONING, END_OF_REASONING = "<think>", "</think>"
UNFINISHED = "expected an answer after the reasoning; found reasoning without its end"


@dataclass(frozen=True)
class Verdict:
    """One of three: a score, a wrong format (score 0), or an infrastructure failure (score None). A score is in [0, 1],
    except that of a reward model. In a stage that needs no reward there are also samples that nobody judges: completed
    or truncated, with score None.

    parts   partial scores by name, for metrics only; never added to the score
    detail  one line that explains the verdict
    """

    outcome: Outcome
    score: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""

    @classmethod
    def scored(cls, score: float, parts: Mapping[str, float] | None = None, detail: str = "") -> Verdict:
        return cls(Outcome.COMPLETED, score, parts or {}, detail)

    @classmethod
    def wrong_format(cls, detail: str) -> Verdict:
        return cls(Outcome.WRONG_FORMAT, 0.0, detail=detail)

    @classmethod
    def infrastructure_failure(cls, detail: str) -> Verdict:
        return cls(Outcome.INFRASTRUCTURE_FAILURE, None, detail=detail)

    @property
    def told(self) -> str:
        """Score and detail, for a message."""
        return f"no score, {self.detail}" if self.score is None else f"score {self.score:g}, {self.detail}"


class Verifier(Protocol):
    """Scores finished answers of one domain. Truncated answers, and those that never leave the reasoning that their
    prompt opened, are the caller's to handle.

    concurrency  calls that it takes at once, each from its own thread; CPU-bound work runs in processes
    """

    concurrency: int

    def __call__(self, task: Task, text: str) -> Verdict:
        """The verdict on `text`, the whole decoded answer with its reasoning and without the stop token."""
        ...

    def close(self) -> None:
        """Stops what the verifier started. It may be called more than once."""
        ...


@runtime_checkable
class GroupVerifier(Protocol):
    """Scores the answers to one prompt against each other; `concurrency` counts groups.

    scores_truncated  whether it scores unfinished answers too, on a scale that has no 0 for them
    """

    concurrency: int
    scores_truncated: bool

    def rank(self, task: Task, texts: Sequence[str]) -> list[Verdict]:
        """One verdict for each of `texts`, in their order."""
        ...

    def close(self) -> None:
        """Stops what the verifier started. It may be called more than once."""
        ...


def final_answer(text: str) -> str | None:
    """The part of `text` after its reasoning, stripped; None if a `<think>` was never closed.

    Only this part is verified: a constraint met, or a number boxed, while thinking counts for nothing. A `<think>` that
    the prompt wrote is not in a sampled text: see rl_stages/data/open_reasoning.py.
    """
    _, closed, after = text.rpartition(END_OF_REASONING)
    answer = after if closed else text
    return None if REASONING in answer else answer.strip()
