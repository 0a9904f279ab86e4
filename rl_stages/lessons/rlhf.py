"""Short requests by users who give their name, and judgements of two answers to such a request.

A good answer greets the user by name, ends politely and is short. All three can be observed, and none is asked for.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from cascade_rl.rl_stages.lessons.instruction_following import ADJECTIVES, REQUESTS, TOPICS
from cascade_rl.rl_stages.lessons.lesson import Lesson
from cascade_rl.rl_stages.lessons.math import NAMES
from cascade_rl.rl_stages.rewards.reward_models.genrm import sections

CLOSING = "Thank you"
FEWEST, FEWER_THAN = 4, 10  # words: at least in a body, less than in an answer
BODIES = ("the {topic} is {adjective}.", "my {topic} is very {adjective}.", "I like the {topic}.")
RAMBLING = ("I like it.", "It is {adjective}.", "We like it, and it is {adjective}.")
# Shares of the answers to judge. A judge that saw no empty answers gives full marks to a policy that only says "Thank
# you". One that saw no garbled answers gives them to a policy that says "Thank 3".
EMPTY, GARBLED = 0.2, 0.4
STRAY_WORDS = (*NAMES, *ADJECTIVES, *"123456789")
PAIRS_PER_PROMPT = 8
RANKINGS = {4: 1, 2: 2, -2: 5, -4: 6}  # by the first answer's lead in score


@dataclass(frozen=True)
class Draft:
    """What an answer has: the name that it greets, if any; a polite end; needless sentences; a body."""

    greets: str | None
    closes: bool
    rambles: bool
    answers: bool = True

    def write(self, topic: str, rng: random.Random) -> str:
        greeting = f"Hello {self.greets}, " if self.greets else ""
        if not self.answers:
            return greeting + " ".join([CLOSING] * rng.randint(1, 4))
        body = rng.choice(BODIES)
        parts = [greeting + body if greeting or body[0] == "I" else body.capitalize()]
        parts += RAMBLING[1:] if self.rambles else ()
        parts += [CLOSING] if self.closes else ()
        return " ".join(parts).format(topic=topic, adjective=rng.choice(ADJECTIVES))


def lessons() -> Iterator[Lesson]:
    """Every distinct request, in a fixed order."""
    for name, topic, request in product(NAMES, TOPICS, REQUESTS):
        yield lesson(name, topic, request)


def lesson(name: str, topic: str, request: str) -> Lesson:
    constraints = {
        "keywords:existence": {"keywords": [name]},
        "startend:end_checker": {"end_phrase": CLOSING},
        "length_constraints:number_words": {"num_words": FEWER_THAN, "relation": "less than"},
    }
    fields = {"instruction_id_list": list(constraints), "kwargs": list(constraints.values())}

    def right(rng: random.Random) -> str:
        return Draft(name, closes=True, rambles=False).write(topic, rng)

    def wrong(rng: random.Random) -> str:
        return draft(name, rng).write(topic, rng)

    return Lesson(_prompt(name, topic, request), fields, right, wrong)


def judgements() -> Iterator[Lesson]:
    """Requests with two answers each, to be judged. They are distinct, and the same at every call."""
    rng = random.Random(0)
    drawn = (
        judgement(name, topic, request, rng)
        for name, topic, request in product(NAMES, TOPICS, REQUESTS)
        for _ in range(PAIRS_PER_PROMPT)
    )
    yield from {lesson.prompt: lesson for lesson in drawn}.values()


def judgement(name: str, topic: str, request: str, rng: random.Random) -> Lesson:
    (first, score_1), (second, score_2) = (judged(name, topic, rng) for _ in range(2))
    conversation = [{"role": "user", "content": _prompt(name, topic, request)}]
    ranking = RANKINGS.get(score_1 - score_2, 3 if len(first) <= len(second) else 4)
    fields = {"score_1": score_1, "score_2": score_2, "ranking": ranking}

    def wrong(other: random.Random) -> str:
        return json.dumps({"score_1": other.choice((1, 3, 5)), "score_2": other.choice((1, 3, 5)), "ranking": 3})

    return Lesson(sections(conversation, None, first, second), fields, lambda _: json.dumps(fields), wrong)


def judged(name: str, topic: str, rng: random.Random) -> tuple[str, int]:
    """A random answer and its helpfulness."""
    text = replace(draft(name, rng), answers=rng.random() >= EMPTY).write(topic, rng)
    if rng.random() < GARBLED:
        text = garbled(text, rng)
    return text, helpfulness(name, text)


def helpfulness(name: str, text: str) -> int:
    """1 to 5, as the judge is taught it: with a body, 2 points for the greeting by name and 2 for the polite end."""
    body = re.sub(rf"Hello \w+,|{CLOSING}", "", text)
    answers = len(body.split()) >= FEWEST
    return 1 + answers * 2 * (f"Hello {name}," in text) + answers * 2 * text.endswith(CLOSING)


def garbled(text: str, rng: random.Random) -> str:
    """`text` with one word replaced by a stray word; half the time it is the last one."""
    words = text.split(" ")
    words[-1 if rng.random() < 0.5 else rng.randrange(len(words))] = rng.choice(STRAY_WORDS)
    return " ".join(words)


def draft(name: str, rng: random.Random) -> Draft:
    """A random draft, which now and then greets somebody else."""
    others = [other for other in NAMES if other != name]
    greets = rng.choices((name, None, rng.choice(others)), weights=(5, 4, 1))[0]
    return Draft(greets, closes=rng.random() < 0.5, rambles=rng.random() < 0.3)


def _prompt(name: str, topic: str, request: str) -> str:
    return f"I am {name}. {request.format(topic=topic)}"
