"""A store room: the model looks at shelves with a tool, and says how much of something is on one of them."""

from itertools import product

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.environments.environment import End, Observation
from cascade_rl.rl_stages.lessons.lesson import Lesson, calling, showing
from cascade_rl.rl_stages.rewards.verifiers.structured.documents import Malformed
from cascade_rl.rl_stages.rewards.verifiers.structured.tool_text import split_calls
from cascade_rl.rl_stages.tasks.domains import Domain

TOOLS = {"look": {"properties": {"shelf": {"type": "string"}}}}


def parse_row(row):
    """What the environment reads of a row, checked before a run starts."""
    shelves, answer = row.get("shelves"), row.get("answer")
    if not isinstance(shelves, dict) or not isinstance(answer, str):
        raise UserError(f"expected 'shelves' {{name: contents}} and 'answer', a text; found {shelves!r} and {answer!r}")
    return {"shelves": shelves, "answer": answer}


class StoreRoom:
    """The environment."""

    concurrency, step_seconds = 1, 5.0

    def start(self, task):
        return Visit(**task.metadata)

    def close(self):
        pass


class Visit:
    """An episode: calls are answered, and a turn without a call is the answer."""

    def __init__(self, shelves, answer):
        self.shelves, self.answer = shelves, answer

    def step(self, text):
        said = final_answer(text)
        if said is None:
            return End(Verdict.wrong_format("expected a call or an answer after the reasoning"))
        try:
            _, calls = split_calls(said, TOOLS)
        except Malformed as error:
            return Observation.of_tools(f"error: {error}")
        if calls:
            return Observation.of_tools(*map(self.look, calls))
        return End(Verdict.scored(float(said == self.answer), detail=f"expected {self.answer}"))

    def look(self, call):
        return self.shelves.get(str(call.arguments.get("shelf")), "error: there is no such shelf")

    def close(self):
        pass


def lessons():
    """Every prompt, with a right and a wrong way to answer it."""
    for shelf, thing, count in product("ABC", ("apples", "cups", "books"), range(1, 10)):
        contents = f"{count} {thing}"

        def turns(said, shelf=shelf, contents=contents):
            return [calling("look", shelf=shelf), showing(contents), {"role": "assistant", "content": said}]

        fields = {"shelves": {shelf: contents}, "answer": str(count)}
        right, wrong = (lambda _, turns=turns, said=said: turns(said) for said in (str(count), str(count % 9 + 1)))
        yield Lesson(f"How many {thing} are on shelf {shelf}, of {count * 7 % 10} shelves?", fields, right, wrong)


SHELVES = Domain("shelves", parse_row, None, lessons, environment=StoreRoom)
