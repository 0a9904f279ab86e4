"""Proofs with generation, self-verification and refinement (arXiv 2603.19220, section 5, in the form of
DeepSeekMath-V2, arXiv 2511.22570, section 3).

    write proofs; the model grades each several times
    repeat: from each of the best proofs and the analyses that found most fault with it, write new ones; grade them
    until one is beyond doubt
"""

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from cascade_rl.launchers.evaluate.test_time.steps import Ask, Reply, Steps, follow_up, numbered
from cascade_rl.rl_stages.core.task import Task

VERIFY = (
    "Above is a problem, below a proof of it. Check the proof step by step; do not repair it. End with its grade in "
    "\\boxed{}: 1 if it is complete and every step holds, 0.5 if only details are missing or wrong, otherwise 0."
)
REFINE = (
    "Below are a proof of the problem above and reviews of it. Not every review is right. Write a complete proof "
    "without the faults that are there."
)
_GRADE = re.compile(r"\\boxed\{\s*(0|0\.5|1)\s*\}")


@dataclass(frozen=True)
class Proof:
    """`score` is the mean of its grades; `reviews` are the texts of its verifications, the worst grade first."""

    reply: Reply
    score: float
    reviews: Sequence[str]


def proofs(
    task: Task,
    generations: int,
    verifications: int,
    kept: int,
    analyses: int,
    refinements: int,
    rounds: int,
    enough: float,
) -> Steps:
    """Ends with the proof of the highest mean grade.

    kept         the best proofs, which a round refines
    analyses     reviews of a proof that its refinement reads
    refinements  new proofs from each of them
    enough       a mean grade that ends the search
    """
    [replies] = yield [Ask(task.messages, generations)]
    pool = yield from _verified(task, replies, verifications)
    for _ in range(rounds - 1):
        if not pool or pool[0].score >= enough:
            break
        asks = [Ask(_refined(task, proof, analyses), refinements) for proof in pool[:kept]]
        written = [reply for group in (yield asks) for reply in group]
        pool += yield from _verified(task, written, verifications)
        pool.sort(key=lambda proof: proof.score, reverse=True)
    return pool[0].reply if pool else replies[0]


def _verified(task: Task, replies: Sequence[Reply], count: int) -> Generator[Sequence[Ask], Any, list[Proof]]:
    """The proofs among the replies, the best first."""
    written = [reply for reply in replies if reply.answer]
    reviews = yield [
        Ask(follow_up(task, f"{VERIFY}\n\n{numbered('proof', [reply.answer])}"), count) for reply in written
    ]
    found = [_proof(reply, group) for reply, group in zip(written, reviews, strict=True)]
    return sorted(found, key=lambda proof: proof.score, reverse=True)


def _proof(reply: Reply, reviews: Sequence[Reply]) -> Proof:
    """A review without a grade counts for nothing; a proof whose reviews all have none has score 0."""
    graded = [(float(grades[-1]), review.answer) for review in reviews if (grades := _GRADE.findall(review.answer))]
    graded.sort(key=lambda pair: pair[0])
    return Proof(reply, fmean(grade for grade, _ in graded) if graded else 0.0, [text for _, text in graded])


def _refined(task: Task, proof: Proof, analyses: int) -> list[dict[str, object]]:
    parts = numbered("proof", [proof.reply.answer]), numbered("review", proof.reviews[:analyses])
    return follow_up(task, "\n\n".join((REFINE, *parts)))
