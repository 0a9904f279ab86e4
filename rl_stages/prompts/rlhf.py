"""Short requests by someone who tells their name, and judgements of two answers to one.

A good answer greets them by name, ends politely and is short: all three can be seen, and none is asked for.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from cascade_rl.rl_stages.prompts.instruction_following import ADJECTIVES, REQUESTS, TOPICS
from cascade_rl.rl_stages.prompts.lesson import Lesson
from cascade_rl.rl_stages.prompts.math import NAMES
from cascade_rl.rl_stages.reward_models.genrm import sections

CLOSING = "Thank you"
FEWER_THAN = 10  # words
BODIES = ("the {topic} is {adjective}.", "my {topic} is very {adjective}.", "I like the {topic}.")
RAMBLING = ("I like it.", "It is {adjective}.", "We like it, and it is {adjective}.")
EMPTY = 0.2  # of the drafts to judge: a judge that saw none gives full marks to a policy that only says thank you
PAIRS_PER_PROMPT = 8
RANKINGS = {4: 1, 2: 2, -2: 5, -4: 6}  # by the lead of the first answer


@dataclass(frozen=True)
class Draft:
    """What an answer has: the name that it greets, or none; a polite end; needless sentences; a body at all."""

    greets: str | None
    closes: bool
    rambles: bool
    answers: bool = True

    def write(self, topic: str, rng: random.Random) -> str:
        if not self.answers:
            greeting = f"Hello {self.greets}, " if self.greets else ""
            return greeting + " ".join([CLOSING] * rng.randint(1, 4))
        body = rng.choice(BODIES)
        greeting = f"Hello {self.greets}, " if self.greets else ""
        parts = [greeting + body if greeting or body[0] == "I" else body.capitalize()]
        parts += RAMBLING[1:] if self.rambles else ()
        parts += [CLOSING] if self.closes else ()
        return " ".join(parts).format(topic=topic, adjective=rng.choice(ADJECTIVES))

    def score(self, name: str) -> int:
        """Helpfulness from 1 to 5: what the judge is taught to see."""
        return 1 + self.answers * (2 * (self.greets == name) + 2 * self.closes)


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
    """Requests with two answers each, to be judged: the same, all distinct, whoever asks."""
    rng = random.Random(0)
    drawn = (
        judgement(name, topic, request, rng)
        for name, topic, request in product(NAMES, TOPICS, REQUESTS)
        for _ in range(PAIRS_PER_PROMPT)
    )
    yield from {lesson.prompt: lesson for lesson in drawn}.values()


def judgement(name: str, topic: str, request: str, rng: random.Random) -> Lesson:
    drafts = [replace(draft(name, rng), answers=rng.random() >= EMPTY) for _ in range(2)]
    first, second = (one.write(topic, rng) for one in drafts)
    conversation = [{"role": "user", "content": _prompt(name, topic, request)}]
    score_1, score_2 = (one.score(name) for one in drafts)
    ranking = RANKINGS.get(score_1 - score_2, 3 if len(first) <= len(second) else 4)
    fields = {"score_1": score_1, "score_2": score_2, "ranking": ranking}

    def wrong(other: random.Random) -> str:
        return json.dumps({"score_1": other.choice((1, 3, 5)), "score_2": other.choice((1, 3, 5)), "ranking": 3})

    return Lesson(sections(conversation, None, first, second), fields, lambda _: json.dumps(fields), wrong)


def draft(name: str, rng: random.Random) -> Draft:
    """Any draft; now and then it greets somebody else."""
    others = [other for other in NAMES if other != name]
    greets = rng.choices((name, None, rng.choice(others)), weights=(5, 4, 1))[0]
    return Draft(greets, closes=rng.random() < 0.5, rambles=rng.random() < 0.3)


def _prompt(name: str, topic: str, request: str) -> str:
    return f"I am {name}. {request.format(topic=topic)}"
