"""One answer that somebody else has scored, and where such answers come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from cascade_rl.rl_stages.data.rows import Row

Turns = tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A row in NeMo-Gym's form, an answer, and the score that its publisher gives it.

    group  the part of the source that it is counted with
    id     unique in the group
    """

    group: str
    id: str
    row: Row
    turns: Turns
    score: float


@dataclass(frozen=True)
class Source:
    """A published package.

    package  its distribution, whose version the table shows
    cases    reads them from the folder in which the package is installed
    floors   the least share of each group that must agree; 1 for a group that is not named
    """

    package: str
    cases: Callable[[Path], Iterator[Case]]
    floors: Mapping[str, float] = field(default_factory=dict)


def together(*sources: Callable[[Path], Iterator[Case]]) -> Callable[[Path], Iterator[Case]]:
    """All that a package has."""
    return lambda folder: chain.from_iterable(source(folder) for source in sources)


def asking(prompt: str, domain: str, /, **fields: object) -> Row:
    """A row with one turn of the user."""
    params = {"input": [{"role": "user", "content": prompt}]}
    return {"responses_create_params": params, "agent_ref": {"name": domain}, **fields}
