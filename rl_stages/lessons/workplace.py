"""Deleting a person's only email or event: search for it, read its id in the tool's output, delete it, say so."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from cascade_rl.rl_stages.environments.office import Office, Record
from cascade_rl.rl_stages.environments.small_office import TOOLS as OFFICE_TOOLS
from cascade_rl.rl_stages.lessons.lesson import Lesson, Message, calling, showing

NAMES = ("Tom", "Ann", "Sam", "Mia", "Ben", "Eva")
TOPICS = ("apples", "books", "cups", "shells")
PROMPTS = {
    "email": (
        "Delete the email from {name} about {topic}.",
        "I do not need the email from {name} about {topic}.",
        "The email about {topic} from {name} must go.",
        "Find the email from {name} about {topic} and delete it.",
        "{name} sent an email about {topic}. Delete it.",
        "Remove the email from {name} about {topic}.",
        "Please delete the email about {topic} from {name}.",
        "Is there an email from {name} about {topic}? Delete it.",
        "Find and delete the email about {topic} from {name}.",
    ),
    "calendar": (
        "Delete the event with {name} about {topic}.",
        "I do not need the event with {name} about {topic}.",
        "The event about {topic} with {name} must go.",
        "Find the event with {name} about {topic} and delete it.",
        "{name} has an event about {topic}. Delete it.",
        "Remove the event with {name} about {topic}.",
        "Please delete the event about {topic} with {name}.",
        "Is there an event with {name} about {topic}? Delete it.",
        "Find and delete the event about {topic} with {name}.",
    ),
}
TOOLS = {
    "email": ("email_search_emails", "email_delete_email", "email_id"),
    "calendar": ("calendar_search_events", "calendar_delete_event", "event_id"),
}
DONE: Message = {"role": "assistant", "content": "Done."}


def lessons() -> Iterator[Lesson]:
    """Every distinct prompt, in a fixed order."""
    for table, name, topic in product(PROMPTS, NAMES, TOPICS):
        for text in PROMPTS[table]:
            yield lesson(text.format(name=name, topic=topic), table, name, topic)


def lesson(prompt: str, table: str, name: str, topic: str) -> Lesson:
    rng = random.Random(prompt)
    number, other_number = rng.sample(range(1, 5), 2)
    other = rng.choice([person for person in NAMES if person != name])
    rows = {
        f"{table}-{number}": record(table, name, topic),
        f"{table}-{other_number}": record(table, other, rng.choice(TOPICS)),
    }
    search, delete, key = TOOLS[table]

    def turns(deleted: str) -> list[Message]:
        office = Office({table: rows}, OFFICE_TOOLS)
        found = office.call(search, {"query": name})
        done = office.call(delete, {key: deleted})
        return [calling(search, query=name), showing(found), calling(delete, **{key: deleted}), showing(done), DONE]

    fields = {
        "initial_state": {table: rows},
        "ground_truth": [{"name": delete, "arguments": {key: f"{table}-{number}"}}],
    }
    return Lesson(prompt, fields, lambda _: turns(f"{table}-{number}"), lambda _: turns(f"{table}-{other_number}"))


def record(table: str, name: str, topic: str) -> Record:
    if table == "email":
        return {"box": "inbox", "address": name, "subject": topic, "body": ""}
    return {"event_name": topic, "participant_email": name, "event_start": "", "duration": ""}
