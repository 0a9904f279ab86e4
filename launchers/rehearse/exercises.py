"""Rows of one domain as they are published: our lessons' content behind text that makes the prompt as long as theirs.

Short ones are the lessons alone, so that a tiny model can learn the answers by heart.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cascade_rl.launchers.rehearse import published_forms
from cascade_rl.launchers.rehearse.row_lengths import Length
from cascade_rl.rl_stages.core.messages import parse_messages
from cascade_rl.rl_stages.lessons.lesson import Answer, Lesson, Message, Row
from cascade_rl.rl_stages.tasks.domains import lessons_of
from cascade_rl.rl_stages.tasks.load_tasks import Split, split_of

DRAWS = 8  # of an answer, of which the shortest is shown

# Constraints that an answer which is a little wrong often still meets, so that the answers of a group differ in reward.
LOOSE = {
    *("punctuation:no_comma", "change_case:english_lowercase", "keywords:forbidden_words", "keywords:existence"),
    *("length_constraints:number_words", "length_constraints:number_sentences"),
}


@dataclass(frozen=True)
class Exercise:
    """A row, and the turns of an answer that its verifier scores 1. `wrong` is an answer that is worse."""

    row: Row
    answer: list[Message]
    wrong: list[Message]
    short: bool

    @property
    def asked(self) -> list[Message]:
        return list(self.row["responses_create_params"]["input"])

    @property
    def tools(self) -> list[Message]:
        return list(self.row["responses_create_params"].get("tools", []))


def exercises(domain: str, count: int, length: Length) -> list[Exercise]:
    """`count` different prompts, the same at every call; a smaller count gives the first of them.

    Of the first seven, four are held out, one is the longest and three are of the usual length. All others are short
    and in the train split.
    """
    lessons = _lessons(domain)
    return [_exercise(domain, lessons, split, tokens) for split, tokens in islice(_wanted(length), count)]


def _wanted(length: Length) -> Iterator[tuple[Split, int]]:
    """The split and the tokens of each row; 0 tokens for a short one."""
    yield from (("heldout", length.typical), ("heldout", 0), ("heldout", 0), ("heldout", 0))
    yield from (("train", length.longest), ("train", length.typical), ("train", length.typical))
    while True:
        yield "train", 0


def _exercise(domain: str, lessons: Iterator[Lesson], split: Split, tokens: int) -> Exercise:
    """The next lesson whose row is in the split."""
    for lesson in lessons:
        row = published_forms.row(domain, lesson, tokens)
        if split_of(parse_messages(row["responses_create_params"]["input"], domain)) == split:
            rng = random.Random(lesson.prompt)
            return Exercise(row, _turns(lesson.right, rng), _turns(lesson.wrong, rng), short=tokens == 0)
    raise AssertionError(f"the lessons of {domain} end before its {split} rows are complete")


def _lessons(domain: str) -> Iterator[Lesson]:
    """In a random order, without those whose answers are long or hard."""
    lessons = [lesson for lesson in lessons_of(domain) if _suits(domain, lesson.fields)]
    random.Random(domain).shuffle(lessons)
    return iter(lessons)


def _suits(domain: str, fields: Mapping[str, Any]) -> bool:
    if domain == "instruction_following":
        return LOOSE.issuperset(fields["instruction_id_list"])
    return domain != "long_context" or fields["long_context_kind"] != "multi_key"


def _turns(draw: Answer, rng: random.Random) -> list[Message]:
    """The shortest of some answers. That of an episode is always the same."""
    texts: list[str] = []
    for _ in range(DRAWS):
        answer = draw(rng)
        if not isinstance(answer, str):
            return answer
        texts.append(answer)
    return [{"role": "assistant", "content": min(texts, key=len)}]
