"""Demonstrations: conversations that end with the assistant, as an endless stream, from files or generated.

A source is what `rl_stages/data/rows.py` reads, with rows `{"messages": [...], "tools"?: [...]}` or, as TRL has them,
`{"prompt": text or messages, "completion": text or messages}`; or it is `generate:<domain>@<accuracy>`, whose answers
are each made correct with that probability.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.base import HELDOUT_FRACTION
from cascade_rl.rl_stages.config.source import GENERATE, Source
from cascade_rl.rl_stages.core.messages import Message, Tool, parse_tools
from cascade_rl.rl_stages.data.row_index import RowIndex
from cascade_rl.rl_stages.data.row_text import conversation
from cascade_rl.rl_stages.data.rows import Row, RowError, read_rows
from cascade_rl.rl_stages.lessons.lesson import Lesson
from cascade_rl.rl_stages.tasks.domains import lessons_of
from cascade_rl.rl_stages.tasks.load_tasks import require_rows, split_of
from cascade_rl.rl_stages.tasks.row_form import ANY, RowForm


@dataclass(frozen=True)
class Demonstration:
    """One conversation. `where` is its file and line."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    where: str = ""


class Demonstrations(Protocol):
    """An endless stream. The item at a position depends on source, seed and position alone."""

    def at(self, position: int) -> Demonstration:
        """Raises UserError, with file and line, for a malformed row."""
        ...


def open_demonstrations(
    source: str, seed: int, heldout_fraction: float = HELDOUT_FRACTION, form: RowForm = ANY
) -> Demonstrations:
    """The stream of a source. UserError if it is missing or empty, or if its accuracy is not in [0, 1]."""
    chosen = Source.parse(source)
    if chosen.generated:
        return GeneratedDemonstrations(chosen, seed, heldout_fraction)
    return FileDemonstrations(chosen, seed, form)


def load_demonstrations(
    source: str, *, count: int, seed: int, heldout_fraction: float = HELDOUT_FRACTION, form: RowForm = ANY
) -> list[Demonstration]:
    """The first `count` items of the stream."""
    stream = open_demonstrations(source, seed, heldout_fraction, form)
    return [stream.at(position) for position in range(count)]


def read_demonstrations(source: str, form: RowForm = ANY) -> Iterator[Demonstration]:
    """Streams all rows of a file source in its order; of a generated source only the first. UserError as above."""
    chosen = Source.parse(source)
    if chosen.generated:
        yield open_demonstrations(source, 0).at(0)
        return
    for where, row in read_rows(chosen.path):
        yield parse_demonstration(row, where, form)


def count_demonstrations(source: str, form: RowForm = ANY) -> int:
    """The number of rows, all checked in one streamed pass. UserError as above, and for fewer than the count."""
    found = sum(1 for _ in read_demonstrations(source, form))
    require_rows(Source.parse(source), found)
    if not found:
        raise UserError(f"{source}: expected demonstrations; found an empty file")
    return found


class FileDemonstrations:
    """Endless passes over the rows of a source, each pass in its own random order."""

    def __init__(self, source: Source, seed: int, form: RowForm) -> None:
        self.rows, self.seed, self.form = RowIndex(source.path), seed, form
        require_rows(source, len(self.rows))
        if not len(self.rows):
            raise UserError(f"{source.path}: expected demonstrations; found an empty file")
        # [count]: the rows in use
        self.chosen = np.random.default_rng(seed).permutation(len(self.rows))[: source.count]
        self._order = lru_cache(maxsize=2)(self._drawn_order)

    def at(self, position: int) -> Demonstration:
        epoch, place = divmod(position, len(self.chosen))
        where, row = self.rows[int(self._order(epoch)[place])]
        return parse_demonstration(row, where, self.form)

    def _drawn_order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.seed, epoch)).permutation(self.chosen)


class GeneratedDemonstrations:
    """Answers to prompts of the train split, sampled with replacement."""

    def __init__(self, source: Source, seed: int, heldout_fraction: float) -> None:
        if source.count is not None:
            raise UserError(f"{source.path}: expected a count for a source with rows; found one for a generated source")
        self.path, self.seed = source.path, seed
        lessons, self.accuracy = _lessons_and_accuracy(source.path)
        self.lessons = [
            lesson for lesson in lessons if split_of([{"content": lesson.prompt}], heldout_fraction) == "train"
        ]

    def at(self, position: int) -> Demonstration:
        rng = random.Random(f"{self.seed}/{position}")
        row = rng.choice(self.lessons).demonstration(self.accuracy, rng)
        return parse_demonstration(row, self.path)


def parse_demonstration(row: Row, where: str, form: RowForm = ANY) -> Demonstration:
    """Of `messages`, or of TRL's `prompt` and `completion`. Raises RowError."""
    try:
        row = form.renamed(row)
        messages = conversation(row)
        if messages[-1]["role"] != "assistant":
            raise UserError(
                f"messages: expected the last message to be the assistant's; found the {messages[-1]['role']}'s"
            )
        return Demonstration(messages, parse_tools(row.get("tools"), "tools"), where)
    except UserError as error:
        raise RowError(f"{where}: {error}") from None


def _lessons_and_accuracy(source: str) -> tuple[Iterator[Lesson], float]:
    name, _, accuracy = source.removeprefix(GENERATE).partition("@")
    lessons = lessons_of(name)
    try:
        value = float(accuracy)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        form = f"{GENERATE}{name}@<fraction that is right, in [0, 1]>"
        raise UserError(f"{source}: expected {form}; found {accuracy!r}")
    return lessons, value
