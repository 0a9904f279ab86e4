"""Lessons whose answers the real verifier is asked about: right ones pass, wrong ones are well formed and fail."""

import random
from contextlib import closing

import pytest

from cascade_rl.rl_stages.tasks.domains import domain_named, lessons_of
from cascade_rl.rl_stages.tasks.load_tasks import parse_task


@pytest.mark.process
@pytest.mark.parametrize(("name", "count"), [("mcqa", 650), ("structured_output", 540)])
def test_right_answers_pass_and_wrong_ones_fail(name: str, count: int) -> None:
    rng = random.Random(0)
    lessons = list(lessons_of(name))
    assert len({lesson.prompt for lesson in lessons}) == len(lessons) >= count
    verifier = domain_named(name).verifier()
    with closing(verifier):
        for lesson in rng.sample(lessons, 60):
            task = parse_task(lesson.row(name), "here", "id")
            assert verifier(task, lesson.right(rng)).score == 1
            wrong = verifier(task, lesson.wrong(rng))
            assert (wrong.score, wrong.outcome) == (0, "completed")
