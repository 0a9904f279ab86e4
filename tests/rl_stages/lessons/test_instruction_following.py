import random

import pytest

from cascade_rl.rl_stages.lessons.instruction_following import FAMILIES, lessons
from cascade_rl.rl_stages.rewards.verifiers.instructions.instruction_following import InstructionFollowingVerifier
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

DOMAIN = "instruction_following"
VERIFIER = InstructionFollowingVerifier()


@pytest.fixture(scope="module")
def all_lessons():
    return list(lessons())


def success(sample, answer):
    rng = random.Random(0)
    tasks = [(parse_task(lesson.row(DOMAIN), "row", "t"), getattr(lesson, answer)(rng)) for lesson in sample]
    return [VERIFIER(task, text).score for task, text in tasks]


def test_prompts_are_distinct_and_cover_many_kinds(all_lessons):
    assert len({lesson.prompt for lesson in all_lessons}) == len(all_lessons) > 3000
    assert len({family[0].id for family in FAMILIES}) == 18
    doubles = [lesson for lesson in all_lessons if len(lesson.fields["instruction_id_list"]) == 2]
    assert 0.05 < len(doubles) / len(all_lessons) < 0.2


def test_right_answers_pass_and_other_answers_rarely_do(all_lessons):
    sample = random.Random(1).sample(all_lessons, 1500)
    assert set(success(sample, "right")) == {1.0}
    wrong = success(sample, "wrong")
    assert 0.05 < sum(wrong) / len(wrong) < 0.2


def test_each_kind_leaves_room(all_lessons):
    for family in FAMILIES:
        of_kind = [lesson for lesson in all_lessons if lesson.fields["instruction_id_list"] == [family[0].id]]
        scores = success(of_kind, "wrong")
        assert sum(scores) / len(scores) < 0.7, family[0].id


def test_the_same_seed_gives_the_same_answers(all_lessons):
    assert all_lessons[7].right(random.Random(3)) == all_lessons[7].right(random.Random(3))
