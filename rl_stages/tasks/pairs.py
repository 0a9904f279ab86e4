"""Loads preference pairs: two answers to one prompt, of which one is preferred. Rows have one of these formats:

own         {"messages": [...], "chosen": text, "rejected": text}
TRL         {"prompt": text or messages, "chosen": text or messages, "rejected": text or messages}, or without `prompt`
            two whole conversations that differ in their last turn
HelpSteer2  {"prompt": text, "response_1": text, "response_2": text, "preference_strength": -3 .. 3}
HelpSteer3  {"context": [messages], "response1": text, "response2": text, "overall_preference": -3 .. 3}

A negative preference is for the first response. Rows with preference 0 are skipped, as in Cascade 1 (arXiv 2512.13607).
`generate:<domain>` makes correct and wrong answers to each of the domain's lessons, and keeps the pairs that its
verifier scores as such. Some of the wrong answers are correct answers to other lessons: a model that learns from near
misses alone need not read the prompt.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.base import HELDOUT_FRACTION
from cascade_rl.rl_stages.config.source import GENERATE, Source
from cascade_rl.rl_stages.core.messages import Message, parse_messages
from cascade_rl.rl_stages.data.rows import RowError, read_rows
from cascade_rl.rl_stages.tasks.domains import lessons_of, rules_of
from cascade_rl.rl_stages.tasks.load_tasks import Split, empty_split, parse_task, split_of
from cascade_rl.rl_stages.tasks.row_form import ANY, RowForm

Row = Mapping[str, Any]

NEAR_MISSES, STRAYS = 3, 1  # per lesson, minus those that happen to be correct

# prompt, first response, second response, preference
HELPSTEER = (
    ("prompt", "response_1", "response_2", "preference_strength"),
    ("context", "response1", "response2", "overall_preference"),
)


ANSWERS = ("chosen", "rejected")


@dataclass(frozen=True)
class Pair:
    """Two answers to `messages`."""

    messages: tuple[Message, ...]
    chosen: str
    rejected: str


def load_pairs(
    source: str, *, split: Split, seed: int, heldout_fraction: float = HELDOUT_FRACTION, form: RowForm = ANY
) -> list[Pair]:
    """The pairs of one split, shuffled by `seed`. The prompt decides the split, as in `load_tasks`.

    Raises UserError for a missing file, a malformed row ("file:line: ...") and an empty split.
    """
    rows = list(read_pairs(source, form))
    pairs = [pair for pair in rows if split_of(pair.messages, heldout_fraction) == split]
    if not pairs:
        raise empty_split(source, split, heldout_fraction, len(rows))
    random.Random(seed).shuffle(pairs)
    return pairs


def is_pair(row: Row) -> bool:
    """Whether the row has one of the formats of preference pairs."""
    return "chosen" in row or any(preference in row for *_, preference in HELPSTEER)


def parse_pair(row: Row, where: str, form: RowForm = ANY) -> Pair | None:
    """The pair of a row; None if it has no preference. Raises RowError."""
    row = _plain(form.renamed(row), where)
    for names in HELPSTEER:
        if names[1] in row:
            return _helpsteer(row, where, *names)
    messages = _prompt(row, "messages", where)
    return Pair(messages, *(_text(row, name, where) for name in ANSWERS))


def read_pairs(source: str, form: RowForm = ANY) -> Iterator[Pair]:
    """All pairs of a source, in its order. Raises UserError as `load_pairs` does, and for a count or a weight."""
    parsed = Source.parse(source)
    if parsed.count is not None or parsed.weight is not None:
        raise UserError(
            f"{source}: expected a source of preference pairs without count and weight; found one: remove it"
        )
    if parsed.generated:
        yield from _generated(parsed.path.removeprefix(GENERATE))
        return
    for where, row in read_rows(parsed.path):
        if pair := parse_pair(row, where, form):
            yield pair


def _generated(domain: str) -> Iterator[Pair]:
    source, rng, lessons = f"{GENERATE}{domain}", random.Random(0), list(lessons_of(domain))
    with closing(rules_of(domain, source)()) as verifier:
        for lesson in lessons:
            task = parse_task(lesson.row(domain), source, lesson.prompt)
            strays = [other.right for other in rng.choices(lessons, k=STRAYS)]
            for wrong in (*[lesson.wrong] * NEAR_MISSES, *strays):
                answers = [str(draw(rng)) for draw in (lesson.right, wrong)]
                better, worse = (verifier(task, answer).score for answer in answers)
                if better is not None and worse is not None and better > worse:
                    yield Pair(task.messages, *answers)


def _plain(row: Row, where: str) -> Row:
    """A row of TRL in our own form; any other as it is."""
    if "messages" in row or not all(name in row for name in ANSWERS):
        return row
    if "prompt" in row:
        return {**row, "messages": row["prompt"], **{name: _last_turn(row[name]) for name in ANSWERS}}
    chosen, rejected = (row[name] for name in ANSWERS)
    if not isinstance(chosen, list) or not isinstance(rejected, list) or chosen[:-1] != rejected[:-1]:
        raise RowError(f"{where}: expected 'prompt', or conversations that differ in their last turn; found neither")
    return {**row, "messages": chosen[:-1], **{name: _last_turn(row[name]) for name in ANSWERS}}


def _last_turn(answer: Any) -> Any:
    """The text of an answer that is a list of messages, whose last one is the assistant's."""
    last = answer[-1] if isinstance(answer, list) and answer else None
    return last.get("content") if isinstance(last, Mapping) and last.get("role") == "assistant" else answer


def _helpsteer(row: Row, where: str, prompt: str, first: str, second: str, preference: str) -> Pair | None:
    messages = _prompt(row, prompt, where)
    responses = [_text(row, name, where) for name in (first, second)]
    strength = row.get(preference)
    if type(strength) is not int or not -3 <= strength <= 3:
        raise RowError(f"{where}: expected {preference!r} to be a whole number from -3 to 3; found {strength!r}")
    if strength == 0:
        return None
    return Pair(messages, *(responses if strength < 0 else responses[::-1]))


def _prompt(row: Row, name: str, where: str) -> tuple[Message, ...]:
    try:
        messages = parse_messages(row.get(name), f"{where}: {name}")
    except UserError as error:
        raise RowError(str(error)) from None
    if messages[-1]["role"] != "user":
        raise RowError(f"{where}: expected {name!r} to end with the user; found {messages[-1]['role']!r}")
    return messages


def _text(row: Row, name: str, where: str) -> str:
    text = row.get(name)
    if not isinstance(text, str) or not text.strip():
        raise RowError(f"{where}: expected {name!r} to be non-empty text; found {text!r}")
    return text
