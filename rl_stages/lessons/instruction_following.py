"""Short requests about everyday things with one or two IFEval constraints, and answers from a small grammar.

The vocabulary is about 150 words, so that a model of a million parameters learns to write within minutes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Any

from cascade_rl.rl_stages.lessons.lesson import Lesson
from cascade_rl.rl_stages.rewards.verifiers.instructions.instruction_following import follows

TOPICS = (
    *("cat", "dog", "house", "garden", "river", "market", "park", "school", "boat"),
    *("bird", "horse", "train", "city", "beach", "lake", "tree", "shop", "room"),
)
ADJECTIVES = ("small", "big", "warm", "cold", "quiet", "new", "soft", "nice")
REQUESTS = (
    "Write about the {topic}.",
    "Describe the {topic}.",
    "Tell me about the {topic}.",
    "Say something about the {topic}.",
)
PLAIN_SENTENCES = ("The {topic} is {one}.", "My {topic} is {one}.")
SHORT_SENTENCES = (
    "The {topic} is {one}.",
    "My {topic} is very {one}.",
    "I like my {topic}, and it is {one}.",
)
SENTENCES = (
    *SHORT_SENTENCES,
    "We saw a {one} {topic} today.",
    "I like the {topic}, it is {one}.",
    "Today, the {topic} is {one} and {two}.",
    "Yes, my {topic} is {one}.",
    "Here, a {one} {topic} makes me happy.",
)
SHORT_SECONDS = ("It is {one}.", "I like it.")
SECOND_SENTENCES = (*SHORT_SECONDS, "We like it, and it is {one}.")
DRAWS = 1000  # attempts; about one draft in ten meets the constraint that is met most rarely

Write = Callable[["Draft"], str]


@dataclass(frozen=True)
class Draft:
    """What an answer is made of: a topic, a random generator, and the text so far if another constraint shaped it."""

    topic: str
    rng: random.Random
    text: str | None = None

    def fill(self, templates: tuple[str, ...]) -> str:
        one, two = self.rng.sample(ADJECTIVES, 2)
        return self.rng.choice(templates).format(topic=self.topic, one=one, two=two)

    def sentence(self) -> str:
        return self.text or self.fill(SENTENCES)

    def second(self) -> str:
        return self.fill(SECOND_SENTENCES)

    def adjectives(self, count: int) -> list[str]:
        return self.rng.sample(ADJECTIVES, count)


@dataclass(frozen=True)
class Constraint:
    """One constraint: a user's wording, the verifier's id and kwargs, and a writer that meets it most of the time."""

    id: str
    wording: str
    write: Write
    kwargs: dict[str, Any] = field(default_factory=dict)

    def met_by(self, answer: str) -> bool:
        return follows(answer, self.id, self.kwargs)


def _existence(word: str) -> Constraint:
    return Constraint("keywords:existence", f"Use the word {word}.", Draft.sentence, {"keywords": [word]})


def _frequency(word: str, count: int) -> Constraint:
    kwargs = {"keyword": word, "frequency": count, "relation": "at least"}
    repeated = " ".join([word] * count)
    templates = (f"The {{topic}} is {repeated} {{one}}.", f"Yes, my {{topic}} is {repeated} {{one}}.")
    wording = f"Use the word {word} at least {count} times."
    return Constraint("keywords:frequency", wording, lambda draft: draft.fill(templates), kwargs)


def _forbidden(word: str, wording: str) -> Constraint:
    return Constraint("keywords:forbidden_words", wording.format(word), Draft.sentence, {"forbidden_words": [word]})


def _words(relation: str, count: int) -> Constraint:
    def write(draft: Draft) -> str:
        sentence = draft.sentence()
        longer = relation == "at least" and draft.rng.random() < 0.5
        return f"{sentence} {draft.second()}" if longer else sentence

    kwargs = {"num_words": count, "relation": relation}
    return Constraint("length_constraints:number_words", f"Answer with {relation} {count} words.", write, kwargs)


def _sentences(count: int) -> Constraint:
    def write(draft: Draft) -> str:
        return " ".join([draft.fill(SHORT_SENTENCES), *(draft.fill(SHORT_SECONDS) for _ in range(count - 1))])

    kwargs = {"num_sentences": count, "relation": "at least"}
    return Constraint("length_constraints:number_sentences", f"Write at least {count} sentences.", write, kwargs)


def _paragraphs(count: int) -> Constraint:
    def write(draft: Draft) -> str:
        return " *** ".join([draft.fill(SHORT_SENTENCES), *(draft.fill(SHORT_SECONDS) for _ in range(count - 1))])

    wording = f"Write {count} paragraphs separated by ***."
    return Constraint("length_constraints:number_paragraphs", wording, write, {"num_paragraphs": count})


def _bullets(count: int) -> Constraint:
    def write(draft: Draft) -> str:
        return "\n".join(f"* {adjective}" for adjective in draft.adjectives(count))

    wording = f"Answer with exactly {count} bullet points, such as * this."
    return Constraint("detectable_format:number_bullet_lists", wording, write, {"num_bullets": count})


def _highlights(count: int) -> Constraint:
    def write(draft: Draft) -> str:
        marked = " and ".join(f"*{adjective}*" for adjective in draft.adjectives(count))
        return f"{draft.rng.choice(('The', 'Today, the', 'Yes, my'))} {draft.topic} is {marked}."

    what = "1 word" if count == 1 else f"{count} words"
    wording = f"Highlight at least {what} with asterisks, such as *this*."
    return Constraint("detectable_format:number_highlighted_sections", wording, write, {"num_highlights": count})


def _placeholders(count: int) -> Constraint:
    templates = {
        1: ("[name] likes the {topic}.", "The {topic} is {one}, [name]."),
        2: ("[name] likes the {topic}, it is in [place].", "The {topic} in [place] is {one}, [name]."),
    }
    what = "1 placeholder" if count == 1 else f"{count} placeholders"
    wording = f"Use at least {what} in square brackets, such as [name]."
    return Constraint(
        "detectable_content:number_placeholders",
        wording,
        lambda draft: draft.fill(templates[count]),
        {"num_placeholders": count},
    )


def _postscript(wording: str) -> Constraint:
    def write(draft: Draft) -> str:
        return f"{draft.sentence()} P.S. {draft.second()}"

    return Constraint("detectable_content:postscript", wording, write, {"postscript_marker": "P.S."})


def _end(phrase: str) -> Constraint:
    def write(draft: Draft) -> str:
        return f"{draft.sentence()} {phrase}"

    return Constraint("startend:end_checker", f"Finish with the exact words: {phrase}", write, {"end_phrase": phrase})


def _title(wording: str) -> Constraint:
    return Constraint("detectable_format:title", wording, lambda draft: f"<<The {draft.topic}>> {draft.second()}")


def _quotation(wording: str) -> Constraint:
    return Constraint("startend:quotation", wording, lambda draft: f'"{draft.sentence()}"')


def _capital(wording: str) -> Constraint:
    return Constraint("change_case:english_capital", wording, lambda draft: draft.fill(PLAIN_SENTENCES).upper())


def _lowercase(wording: str) -> Constraint:
    return Constraint("change_case:english_lowercase", wording, lambda draft: draft.sentence().lower())


def _no_comma(wording: str) -> Constraint:
    return Constraint("punctuation:no_comma", wording, Draft.sentence)


def _two_responses(wording: str) -> Constraint:
    def write(draft: Draft) -> str:
        return f"{draft.fill(SHORT_SENTENCES)} ****** {draft.fill(SHORT_SENTENCES)}"

    return Constraint("combination:two_responses", wording, write)


def _json(wording: str) -> Constraint:
    return Constraint("detectable_format:json_format", wording, lambda draft: f'{{"it": "{draft.adjectives(1)[0]}"}}')


FAMILIES: tuple[tuple[Constraint, ...], ...] = (
    tuple(_existence(word) for word in ("today", "happy", "like")),
    tuple(_frequency(word, count) for word, count in product(("very", "so"), (2, 3))),
    tuple(_forbidden(*pair) for pair in product(("the", "is"), ("Do not use the word {}.", "Avoid the word {}."))),
    (_words("at least", 8), _words("at least", 9), _words("less than", 5)),
    (_sentences(2), _sentences(3)),
    (_paragraphs(2), _paragraphs(3)),
    (_bullets(2), _bullets(3)),
    (_highlights(1), _highlights(2)),
    (_placeholders(1), _placeholders(2)),
    (
        _postscript("Add a postscript starting with P.S."),
        _postscript("Finish with a postscript that starts with P.S."),
    ),
    tuple(_end(phrase) for phrase in ("That is all", "The end", "Good night", "Thank you")),
    (_title("Give it a title such as <<title>>."), _title("Add a title wrapped in << and >>.")),
    (
        _quotation("Wrap the whole answer in double quotation marks."),
        _quotation("Put double quotation marks around it."),
    ),
    (_capital("Use only capital letters."), _capital("Answer in all capital letters.")),
    (_lowercase("Use only lowercase letters."), _lowercase("Answer in all lowercase letters.")),
    (_no_comma("Do not use any commas."), _no_comma("Answer without commas.")),
    (_two_responses("Give two different answers separated by ******."),),
    (_json("Answer in JSON format."), _json("Wrap the whole answer in JSON format.")),
)
INNER = tuple(constraint for constraint in chain(*FAMILIES) if constraint.id == "startend:end_checker")
OUTER = tuple(
    family[0]
    for family in FAMILIES
    if family[0].id in ("startend:quotation", "change_case:english_lowercase", "punctuation:no_comma")
)


def lessons() -> Iterator[Lesson]:
    """Every distinct prompt, in a fixed order: each constraint with each request, some pairs with the first request."""
    singles = [(constraint,) for family in FAMILIES for constraint in family]
    for topic, request, constraints in product(TOPICS, REQUESTS, singles):
        yield lesson(topic, request, constraints)
    for topic, pair in product(TOPICS, product(INNER, OUTER)):
        yield lesson(topic, REQUESTS[0], pair)


def lesson(topic: str, request: str, constraints: tuple[Constraint, ...]) -> Lesson:
    # The first constraint shapes the draft first and is stated last, since its wording may end without a full stop.
    wordings = [constraint.wording for constraint in reversed(constraints)]
    prompt = " ".join([request.format(topic=topic), *wordings])
    fields = {
        "instruction_id_list": [constraint.id for constraint in constraints],
        "kwargs": [constraint.kwargs for constraint in constraints],
    }

    def wrong(rng: random.Random) -> str:
        return right_answer((rng.choice(rng.choice(FAMILIES)),), topic, rng)

    return Lesson(prompt, fields, lambda rng: right_answer(constraints, topic, rng), wrong)


def right_answer(constraints: tuple[Constraint, ...], topic: str, rng: random.Random) -> str:
    """An answer that meets all constraints. Drafts are written until the verifier passes one."""
    for _ in range(DRAWS):
        text: str | None = None
        for constraint in constraints:
            text = constraint.write(Draft(topic, rng, text))
        if text and all(constraint.met_by(text) for constraint in constraints):
            return text
    raise AssertionError(f"no answer about {topic!r} meets {[constraint.wording for constraint in constraints]}")
