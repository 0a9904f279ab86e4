"""Best of several by the model's own comparison: it reads a few replies and names the best, until one is left."""

import re
from collections.abc import Sequence
from itertools import batched

from cascade_rl.launchers.evaluate.test_time.steps import Ask, Reply, Steps, follow_up, numbered
from cascade_rl.rl_stages.core.task import Task

REQUEST = (
    "Above is a problem. Below are several solutions of it. Check each, and say which one is most likely to be right. "
    "End with its number in \\boxed{}."
)
_CHOICE = re.compile(r"\\boxed\{\s*(\d+)\s*\}")


def compare(task: Task, generations: int, shown: int) -> Steps:
    """`shown`: the solutions that one comparison reads."""
    [replies] = yield [Ask(task.messages, generations)]
    left = [reply for reply in replies if reply.answer]
    while len(left) > 1:
        heats = list(batched(left, shown))
        asks = [Ask(follow_up(task, f"{REQUEST}\n\n{_listed(heat)}")) for heat in heats if len(heat) > 1]
        judged = iter((yield asks))
        left = [heat[_chosen(next(judged)[0], len(heat))] if len(heat) > 1 else heat[0] for heat in heats]
    return left[0] if left else replies[0]


def _listed(heat: Sequence[Reply]) -> str:
    return numbered("solution", [reply.answer for reply in heat])


def _chosen(judge: Reply, count: int) -> int:
    """The place of the solution that the comparison names; the first if it names none."""
    named = [int(number) for number in _CHOICE.findall(judge.answer)]
    return named[-1] - 1 if named and 1 <= named[-1] <= count else 0
