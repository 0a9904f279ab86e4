import random
import re

from cascade_rl.rl_stages.lessons.math import SLIPS, lessons

ANSWER = re.compile(r"(\d+) ([+-]) (\d+) = \\boxed\{(\d+)\}")


def test_prompts_are_distinct_and_name_both_numbers():
    everything = list(lessons())
    assert len({lesson.prompt for lesson in everything}) == len(everything) > 3500
    for lesson in everything:
        a, _, b, _ = ANSWER.fullmatch(lesson.right(random.Random(0))).groups()
        assert sorted(re.findall(r"\d+", lesson.prompt)) == sorted([a, b])


def test_right_answers_are_right_and_wrong_ones_slip_a_little():
    rng = random.Random(0)
    slips = set()
    for lesson in lessons():
        a, sign, b, value = ANSWER.fullmatch(lesson.right(rng)).groups()
        assert (
            int(value) == (int(a) + int(b) if sign == "+" else int(a) - int(b)) == int(lesson.fields["expected_answer"])
        )
        slips.add(int(ANSWER.fullmatch(lesson.wrong(rng)).group(4)) - int(value))
    assert slips == set(SLIPS)
