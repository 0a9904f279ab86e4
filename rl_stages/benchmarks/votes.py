"""What an answer says, in one form, so that equal answers count together. Only for domains whose answers are short."""

from collections.abc import Callable

from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import final_answer
from cascade_rl.rl_stages.rewards.verifiers.maths.boxes import answer_boxes
from cascade_rl.rl_stages.rewards.verifiers.maths.notation import one_notation
from cascade_rl.rl_stages.rewards.verifiers.maths.numerals import as_fraction
from cascade_rl.rl_stages.rewards.verifiers.mcqa import MultipleChoiceVerifier

Vote = Callable[[Task, str], str | None]


def _boxed(_: Task, text: str) -> str | None:
    """The boxed values; numbers are equal in any notation."""
    boxes = [one_notation(box) for box in answer_boxes(final_answer(text) or "")]
    return ", ".join(box if (value := as_fraction(box)) is None else str(value) for box in boxes) or None


def _letter(task: Task, text: str) -> str | None:
    try:
        return MultipleChoiceVerifier().letter(final_answer(text) or "", task.metadata)
    except TimeoutError:
        return None


VOTES: dict[str, Vote] = {"math": _boxed, "mcqa": _letter}
