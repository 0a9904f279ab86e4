"""Generate, submit and refine, as at a programming contest: each round writes programs in view of all submissions and
of what the judge said of them (IOI and ICPC in arXiv 2603.19220, section 6; IOI in 2512.13607)."""

from cascade_rl.launchers.evaluate.test_time.steps import Ask, Grade, Reply, Steps, follow_up, numbered, told
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict

REQUEST = (
    "Below are the solutions that were handed in so far, the best last, with what the judge said. Find out why they "
    "are not right, and write a solution that is."
)
Submission = tuple[Reply, Verdict]


def refine(task: Task, generations: int, rounds: int, submissions: int, shown: int) -> Steps:
    """Ends with the best submission.

    generations   of each round
    submissions   that a round may hand in; those that were handed in before are not handed in again
    shown         the submissions that a prompt has room for, the best ones
    """
    known: list[Submission] = []
    for _ in range(rounds):
        [replies] = yield [Ask(_prompt(task, known[:shown]), generations)]
        fresh = _fresh(replies, known)[:submissions]
        verdicts = yield Grade(fresh)
        known = sorted([*known, *zip(fresh, verdicts, strict=True)], key=_score, reverse=True)
        if known and _score(known[0]) >= 1.0:
            break
    return known[0][0] if known else replies[0]


def _prompt(task: Task, known: list[Submission]) -> list[dict[str, object]]:
    if not known:
        return list(task.messages)
    listed = [f"{reply.answer}\n[judge: {told(verdict)}]" for reply, verdict in reversed(known)]
    return follow_up(task, f"{REQUEST}\n\n{numbered('submission', listed)}")


def _fresh(replies: list[Reply], known: list[Submission]) -> list[Reply]:
    """Those that nobody has handed in yet, equal ones once."""
    old = {"", *(reply.answer for reply, _ in known)}
    fresh: dict[str, Reply] = {}
    for reply in replies:
        if reply.answer not in old:
            fresh.setdefault(reply.answer, reply)
    return list(fresh.values())


def _score(submission: Submission) -> float:
    score = submission[1].score
    return -1.0 if score is None else score
