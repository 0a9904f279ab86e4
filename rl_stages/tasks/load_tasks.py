"""Loads tasks from rows in NeMo-Gym's format or from a generator. Both go through one row parser.

A source is what `rl_stages/data/rows.py` reads, or `generate:<domain>`. `rl_stages/config/source.py` adds counts and
weights.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, overload

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.base import HELDOUT_FRACTION
from cascade_rl.rl_stages.config.source import GENERATE, Source
from cascade_rl.rl_stages.core.messages import Message, parse_messages, parse_tools, shown
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.row_index import RowIndex
from cascade_rl.rl_stages.data.rows import Row, RowError, read_rows
from cascade_rl.rl_stages.tasks.domains import domain_named, is_third_party, lessons_of
from cascade_rl.rl_stages.tasks.row_form import ANY, RowForm

Split = Literal["train", "heldout"]


class TaskList(Sequence[Task]):
    """Some tasks of a source in a given order, each parsed when it is accessed."""

    def __init__(
        self,
        source: Source,
        rows: Sequence[tuple[str, Row]] | RowIndex,
        numbers: array,
        form: RowForm,
    ) -> None:
        self.source, self.rows, self.numbers, self.form = source, rows, numbers, form

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> TaskList: ...
    def __getitem__(self, index: int | slice) -> Task | TaskList:
        if isinstance(index, slice):
            return TaskList(self.source, self.rows, self.numbers[index], self.form)
        return _task(self.rows, self.numbers[index], self.source, self.form)


class JoinedTasks(Sequence[Task]):
    """Several lists of tasks, concatenated."""

    def __init__(self, lists: Sequence[Sequence[Task]]) -> None:
        self.lists = lists

    def __len__(self) -> int:
        return sum(map(len, self.lists))

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        place = range(len(self))[index]
        for tasks in self.lists:
            if place < len(tasks):
                return tasks[place]
            place -= len(tasks)
        raise AssertionError("range() bounds the index")


def load_tasks(
    source: str,
    *,
    split: Split,
    seed: int,
    heldout_fraction: float = HELDOUT_FRACTION,
    form: RowForm = ANY,
) -> TaskList:
    """The tasks of one split, shuffled by `seed`; of the train split at most the source's count.

    A hash of the prompt text decides the split, so no text is in both, whatever the seed, the order or the file.
    Raises UserError for a missing source, an unknown domain, a malformed row ("file:line: ..."), an empty split and a
    train split with fewer tasks than the count.
    """
    chosen = Source.parse(source)
    rows = _generated_rows(chosen) if chosen.generated else RowIndex(chosen.path)
    tasks = (_task(rows, number, chosen, form) for number in range(len(rows)))
    splits = (split_of(task.messages, heldout_fraction) for task in tasks)
    numbers = array("q", (number for number, found in enumerate(splits) if found == split))
    if not numbers:
        raise empty_split(chosen.path, split, heldout_fraction, len(rows))
    random.Random(seed).shuffle(numbers)
    if split == "train" and chosen.count is not None:
        require_rows(chosen, len(numbers))
        numbers = numbers[: chosen.count]
    return TaskList(chosen, rows, numbers, form)


def census(source: str, heldout_fraction: float = HELDOUT_FRACTION, form: RowForm = ANY) -> Counter[tuple[Split, str]]:
    """Number of tasks by split and domain, in one streamed pass over all rows. UserError as in `load_tasks`, for each
    split that the fraction leaves rows for."""
    found: Counter[tuple[Split, str]] = Counter()
    for task in read_tasks(source, form):
        found[split_of(task.messages, heldout_fraction), task.domain] += 1
    shares: dict[Split, float] = {"train": 1 - heldout_fraction, "heldout": heldout_fraction}
    for split, share in shares.items():
        if share and not any(part == split for part, _ in found):
            raise empty_split(Source.parse(source).path, split, heldout_fraction, found.total())
    require_rows(Source.parse(source), sum(count for (split, _), count in found.items() if split == "train"))
    return found


def empty_split(source: str | Path, split: Split, share: float, rows: int) -> UserError:
    """Says why a source has nothing to train on, or nothing to score by."""
    if not rows:
        return UserError(f"{source}: expected rows; found none: add some")
    use = "to train on" if split == "train" else "for held-out scores"
    return UserError(
        f"{source}: expected prompts {use}; found none: a hash of their texts withholds {share:g} of them "
        f"(evaluation.heldout_fraction), and {rows} rows are too few. Add rows, change the share, or give the stage "
        "held-out rows of its own (heldout)"
    )


def read_tasks(source: str, form: RowForm = ANY) -> Iterator[Task]:
    """Streams all tasks of a source in its order. Raises UserError for a missing source and a malformed row."""
    for task_id, where, row in named_rows(source):
        yield parse_task(row, where, task_id, form)


def named_rows(source: str) -> Iterator[tuple[str, str, Row]]:
    """The id of each row's task, the row's location, and the row. Raises UserError for a missing source."""
    chosen = Source.parse(source)
    rows = _generated_rows(chosen) if chosen.generated else read_rows(chosen.path)
    for number, (where, row) in enumerate(rows):
        yield _name(chosen, number), where, row


def split_of(messages: Iterable[Message], heldout_fraction: float = HELDOUT_FRACTION) -> Split:
    text = "\n".join(message["content"] for message in messages)
    draw = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64
    return "heldout" if draw < heldout_fraction else "train"


def parse_task(row: Row, where: str, task_id: str, form: RowForm = ANY) -> Task:
    """A task from a row. Raises RowError."""
    try:
        row = form.task_row(row)
        agent = row.get("agent_ref")
        if not isinstance(agent, dict) or not isinstance(agent.get("name"), str):
            raise UserError(f"expected 'agent_ref' to be {{\"name\": <domain>}}; found {shown(agent)}")
        params = row.get("responses_create_params")
        if not isinstance(params, dict):
            wanted = '{"input": [messages]}'
            raise UserError(f"expected 'responses_create_params' to be {wanted}; found {shown(params)}")
        messages = parse_messages(params.get("input"), "responses_create_params.input")
        if messages[-1]["role"] not in ("user", "tool"):
            last = messages[-1]["role"]
            raise UserError(f"expected the last message to be the user's or a tool's output; found the {last}'s")
        if form.rewards is not None and is_third_party(agent["name"]) and agent["name"] not in form.rewards:
            raise UserError(
                f"expected 'agent_ref' to name a domain, or somebody else's reward that the launcher's stage names "
                f"({', '.join(form.rewards) or 'it names none'}); found {shown(agent['name'])}: name it in the stage's "
                "`domain` or `domains`, or in --reward of the command, or remove the row"
            )
        domain = domain_named(agent["name"])
        tools = parse_tools(params.get("tools"), "responses_create_params.tools")
        return Task(task_id, domain.name, messages, domain.parse_row(row), tools)
    except UserError as error:
        raise RowError(f"{where}: {error}") from None
    except RecursionError:
        raise RowError(f"{where}: expected a row with less nesting; found one that is nested too deeply") from None


def require_rows(source: Source, found: int) -> None:
    if source.count is not None and found < source.count:
        raise UserError(f"{source.path}: expected at least {source.count} rows; found {found}")


def _task(rows: Sequence[tuple[str, Row]] | RowIndex, number: int, source: Source, form: RowForm) -> Task:
    where, row = rows[number]
    return parse_task(row, where, _name(source, number), form)


def _name(source: Source, number: int) -> str:
    return f"{Path(source.path).stem.removeprefix(GENERATE)}-{number:06d}"


def _generated_rows(source: Source) -> list[tuple[str, Row]]:
    name = source.path.removeprefix(GENERATE)
    return [(source.path, lesson.row(name)) for lesson in lessons_of(name)]
