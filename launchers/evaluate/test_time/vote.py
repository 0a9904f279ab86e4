"""The answer that most replies give."""

from collections import Counter

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.evaluate.test_time.steps import Ask, Steps
from cascade_rl.rl_stages.benchmarks.votes import VOTES
from cascade_rl.rl_stages.core.task import Task


def vote(task: Task, generations: int) -> Steps:
    """Raises UserError for a domain whose answers cannot be counted."""
    if task.domain not in VOTES:
        raise UserError(f"expected a task of {' or '.join(VOTES)}, whose answers can be counted; found {task.domain}")
    [replies] = yield [Ask(task.messages, generations)]
    said = [VOTES[task.domain](task, reply.answer) if reply.answer else None for reply in replies]
    counts = Counter(answer for answer in said if answer is not None)
    if not counts:
        return replies[0]
    [(most, _)] = counts.most_common(1)
    return replies[said.index(most)]
