"""A domain: how much of an answer is the letter that was asked for."""

from string import ascii_lowercase

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.lessons.lesson import Lesson
from cascade_rl.rl_stages.tasks.domains import Domain

PROMPTS = ("Write the letter {}.", "Only {}, please.", "Fill a line with {}.", "I would like to read {}.")


def parse_row(row):
    """What the verifier reads of a row, checked before a run starts."""
    letter = row.get("letter")
    if not isinstance(letter, str) or len(letter) != 1:
        raise UserError(f"letter: expected one letter; found {letter!r}")
    return {"letter": letter}


class LettersVerifier:
    concurrency = 1  # calls at once, each from its own thread

    def __call__(self, task, text):
        answer = final_answer(text)  # what follows </think>
        if not answer:
            return Verdict.wrong_format("expected an answer")
        return Verdict.scored(answer.count(task.metadata["letter"]) / len(answer))

    def close(self):
        pass


def lessons():
    """Every prompt of `generate:`, with a right and a wrong answer."""
    for letter in ascii_lowercase:
        for prompt in PROMPTS:
            yield Lesson(prompt.format(letter), {"letter": letter}, lambda _, one=letter: one * 4, lambda _: "?")


LETTERS = Domain("letters", parse_row, LettersVerifier, lessons)
