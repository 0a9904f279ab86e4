"""What a tiny model learns by heart before the rehearsal's RL: answers to short prompts, and which of two is better."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from cascade_rl.launchers.rehearse.exercises import Exercise
from cascade_rl.rl_stages.lessons.lesson import Message, Row

LEARNED = 8  # of a domain: from so few, a tiny model learns in some dozens of steps how answers end
REASONING = "ok"  # a template shows an empty one as an answer without reasoning


def demonstrations(exercises: Iterable[Exercise], *, thinking: bool) -> Iterator[Row]:
    """SFT rows of the first short exercises: those that are held out, and some of the others. They have hardly any
    reasoning, or none for prompts that ask for no thinking."""
    for exercise in islice((exercise for exercise in exercises if exercise.short), LEARNED):
        answer = [_thought(turn) for turn in exercise.answer] if thinking else exercise.answer
        tools = {"tools": exercise.tools} if exercise.tools else {}
        yield {"messages": [*exercise.asked, *answer], **tools}


def preference_pairs(exercises: Iterable[Exercise]) -> Iterator[Row]:
    """Pairs in the forms of Cascade 1's sets in turn: HelpSteer3, HelpSteer2, and its synthetic pairs in our own."""
    for number, exercise in enumerate(exercises):
        right, wrong = (answer[-1]["content"] for answer in (exercise.answer, exercise.wrong))
        prompt = exercise.asked
        yield (
            {"context": prompt, "response1": right, "response2": wrong, "overall_preference": -2},
            {
                "prompt": prompt[-1]["content"],
                "response_1": wrong,
                "response_2": right,
                "preference_strength": 3,
            },
            {"messages": prompt, "chosen": right, "rejected": wrong},
        )[number % 3]


def _thought(turn: Message) -> Message:
    return {**turn, "reasoning_content": REASONING} if turn["role"] == "assistant" else turn
