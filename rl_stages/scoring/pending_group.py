"""The samples of one prompt between the first that ends and the last verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict


class Answer(NamedTuple):
    """The text of a sample and its verdict."""

    text: str
    verdict: Verdict


@dataclass(frozen=True)
class PendingGroup:
    """Samples by id, in the order of `names`.

    texts     of the samples that have ended
    verdicts  of those whose scoring has begun; calling one waits for it
    cut       ids of those that reached a limit of their tokens
    """

    task: Task
    names: Sequence[str]
    texts: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, Callable[[], Verdict]] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        return len(self.texts) == len(self.names)

    def unasked(self) -> list[tuple[str, str]]:
        """Ids and texts of the samples that have ended and whose scoring has not begun."""
        ended = [name for name in self.names if name in self.texts]
        return [(name, self.texts[name]) for name in ended if name not in self.verdicts]

    def answers(self) -> list[Answer]:
        """All answers, once they are scored. Raises what the verifier raised."""
        return [Answer(self.texts[name], self.verdicts[name]()) for name in self.names]
