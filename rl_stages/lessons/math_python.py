"""The sums of `math`, computed by the Python tool: a call, its output, and the answer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from cascade_rl.rl_stages.environments.python_tool import NAME
from cascade_rl.rl_stages.lessons import math
from cascade_rl.rl_stages.lessons.lesson import Answer, Lesson, Message, calling, showing


def lessons() -> Iterator[Lesson]:
    """Every distinct prompt, in a fixed order."""
    for lesson in math.lessons():
        value = lesson.fields["expected_answer"]
        yield replace(lesson, right=_computed(lesson.right, value), wrong=_computed(lesson.wrong, value))


def _computed(answer: Answer, value: str) -> Answer:
    """The turns that end with the answer. A wrong one contradicts the tool."""

    def turns(rng: random.Random) -> list[Message]:
        said = answer(rng)
        assert isinstance(said, str)
        code = f"print({said.partition(' =')[0]})"
        return [calling(NAME, code=code), showing(value), {"role": "assistant", "content": said}]

    return turns
