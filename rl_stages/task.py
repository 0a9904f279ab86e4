"""Tasks and demonstrations, read from NeMo-Gym JSONL or generated; both go through one row parser.

A source is a path to a `.jsonl` file, `generate:<domain>` (tasks), or `generate:<domain>@<accuracy>`
(demonstrations, each of which is right on purpose with that probability).
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cascade_rl.engine.errors import UserError
from cascade_rl.rl_stages.domains import domain_named, lessons_of
from cascade_rl.rl_stages.prompts.lesson import Lesson

Split = Literal["train", "heldout"]
Message = dict[str, str]
Row = Mapping[str, Any]

GENERATE = "generate:"
HELDOUT_SHARE = 0.1
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Task:
    """One prompt and what its verifier reads. `id` is unique in its source and the same in every run.

    tools  what the model may call, as chat templates take it: {"type": "function", "function": {...}}
    """

    id: str
    domain: str
    messages: tuple[Message, ...]
    metadata: Mapping[str, Any]
    tools: tuple[Mapping[str, Any], ...] = ()


def load_tasks(source: str, *, split: Split, seed: int) -> list[Task]:
    """The tasks of one split, shuffled by `seed`.

    The split is a hash of the prompt text: no text is in both, whatever the seed, the order or the file.
    UserError on a missing file, an unknown domain, a malformed row ("file:line: ...") or an empty split.
    """
    tasks = [task for task in _tasks(source) if split_of(task.messages) == split]
    if not tasks:
        raise UserError(f"{source}: expected tasks in the {split} split; found none: add rows")
    random.Random(seed).shuffle(tasks)
    return tasks


def load_demonstrations(source: str, *, count: int, seed: int) -> list[tuple[Message, ...]]:
    """`count` conversations that end with the assistant, in an order drawn by `seed`.

    Of a file, each conversation comes up before any comes up again. Generated ones answer prompts of the
    train split, drawn with replacement. UserError as in `load_tasks`, and on an accuracy not in [0, 1].
    """
    rng = random.Random(seed)
    if source.startswith(GENERATE):
        lessons, accuracy = _lessons_and_accuracy(source)
        rows = (rng.choice(lessons).demonstration(accuracy, rng) for _ in range(count))
        return [_conversation(row, source) for row in rows]
    conversations = [_conversation(row, where) for where, row in _read_jsonl(source)]
    if not conversations:
        raise UserError(f"{source}: expected demonstrations; found an empty file")
    return list(_shuffled_epochs(conversations, count, rng))


def split_of(messages: Iterable[Message]) -> Split:
    text = "\n".join(message["content"] for message in messages)
    draw = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64
    return "heldout" if draw < HELDOUT_SHARE else "train"


def parse_task(row: Row, where: str, task_id: str) -> Task:
    """A task from a NeMo-Gym row; UserError that begins with `where`."""
    agent = row.get("agent_ref")
    if not isinstance(agent, dict) or not isinstance(agent.get("name"), str):
        raise UserError(f"{where}: expected 'agent_ref' to be {{\"name\": <domain>}}; found {agent!r}")
    params = row.get("responses_create_params")
    if not isinstance(params, dict):
        form = '{"input": [messages]}'
        raise UserError(f"{where}: expected 'responses_create_params' to be {form}; found {params!r}")
    messages = _messages(params.get("input"), f"{where}: responses_create_params.input", last="user")
    try:
        domain = domain_named(agent["name"])
        return Task(task_id, domain.name, messages, domain.parse_row(row), _tools(params.get("tools")))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _tasks(source: str) -> Iterator[Task]:
    for index, (where, row) in enumerate(_rows(source)):
        yield parse_task(row, where, f"{Path(source).stem.removeprefix(GENERATE)}-{index:06d}")


def _rows(source: str) -> Iterator[tuple[str, Row]]:
    if not source.startswith(GENERATE):
        yield from _read_jsonl(source)
        return
    name = source.removeprefix(GENERATE)
    for lesson in lessons_of(name):
        yield source, lesson.row(name)


def _lessons_and_accuracy(source: str) -> tuple[list[Lesson], float]:
    name, _, accuracy = source.removeprefix(GENERATE).partition("@")
    lessons = lessons_of(name)
    try:
        value = float(accuracy)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        form = f"{GENERATE}{name}@<fraction that is right, in [0, 1]>"
        raise UserError(f"{source}: expected {form}; found {accuracy!r}")
    train = [lesson for lesson in lessons if split_of([{"content": lesson.prompt}]) == "train"]
    return train, value


def _read_jsonl(source: str) -> Iterator[tuple[str, Row]]:
    path = Path(source)
    if path.suffix != ".jsonl" or not path.is_file():
        raise UserError(f"expected a .jsonl file or {GENERATE}<domain>; found {source!r}, which is no such file")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"{source}:{number}", _parse_line(line, f"{source}:{number}")


def _parse_line(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: expected one JSON object a line; found text that is not JSON ({error})") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected one JSON object a line; found a {type(row).__name__}")
    return row


def _conversation(row: Row, where: str) -> tuple[Message, ...]:
    return _messages(row.get("messages"), f"{where}: messages", last="assistant")


def _messages(value: object, where: str, *, last: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: expected a non-empty list of messages; found {value!r}")
    for message in value:
        if not _is_message(message):
            form = f'{{"role": one of {ROLES}, "content": text}}'
            raise UserError(f"{where}: expected {form}; found {message!r}")
    if value[-1]["role"] != last:
        raise UserError(f"{where}: expected the last message to be the {last}'s; found the {value[-1]['role']}'s")
    return tuple({"role": message["role"], "content": message["content"]} for message in value)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), str) and value.get("role") in ROLES


def _tools(value: object) -> tuple[Mapping[str, Any], ...]:
    """NeMo-Gym's flat tools in the nested form of chat templates."""
    tools = value or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and "name" in tool for tool in tools):
        form = '{"type": "function", "name": text, ...}'
        raise UserError(f"expected 'responses_create_params.tools' to be a list of {form}; found {value!r}")
    return tuple(
        {"type": "function", "function": {name: item for name, item in tool.items() if name not in ("type", "strict")}}
        for tool in tools
    )


def _shuffled_epochs(items: list[Any], count: int, rng: random.Random) -> Iterator[Any]:
    while count > 0:
        epoch = rng.sample(items, len(items))[:count]
        count -= len(epoch)
        yield from epoch
