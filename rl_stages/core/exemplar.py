"""A task with a right and an empty answer, which show whether a grader works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

from cascade_rl.engine.cluster.node import Node
from cascade_rl.rl_stages.core.task import Task


@dataclass(frozen=True)
class Exemplar:
    """The model's turns: one for a single answer, several for an episode.

    name    the instance, for messages
    golden  must score 1
    empty   is equally well formed and changes nothing; must score 0
    """

    name: str
    task: Task
    golden: tuple[str, ...]
    empty: tuple[str, ...]


@runtime_checkable
class RunsOnNodes(Protocol):
    """A verifier or an environment that runs untrusted code on several nodes."""

    def on(self, node: Node) -> Self:
        """The same on one of its nodes only. It shares the sandbox, and is closed with it."""
        ...
