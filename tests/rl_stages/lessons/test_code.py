import random
import re
from contextlib import closing

from cascade_rl.rl_stages.lessons.code import NUMBERS, lessons, pair_value
from cascade_rl.rl_stages.rewards.verifiers.programs.code import CodeVerifier
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

PROGRAM = re.compile(r"```\n(print\(int\(input\(\)\) . \d\)|def [fgh]\((x|a, b)\): return .+)\n```")


def test_prompts_are_distinct_and_answers_are_one_line():
    everything = list(lessons())
    assert len({lesson.prompt for lesson in everything}) == len(everything) > 600
    rng = random.Random(0)
    for lesson in everything:
        right, wrong = lesson.right(rng), lesson.wrong(rng)
        assert PROGRAM.fullmatch(right)
        assert PROGRAM.fullmatch(wrong)
        assert right != wrong


def test_the_expected_results_are_those_of_the_program():
    signs = {"plus": "+", "minus": "-", "times": "*"}
    for first in signs:
        for second in signs:
            expected = [
                eval(f"a {signs[first]} b {signs[second]} 3", {"a": a, "b": b}) for a in NUMBERS for b in NUMBERS
            ]
            assert expected == [pair_value(a, b, first, second, 3) for a in NUMBERS for b in NUMBERS]


def test_right_answers_pass_in_the_sandbox_and_wrong_ones_fail():
    rng = random.Random(2)
    with closing(CodeVerifier(slots=1)) as verifier:
        for lesson in rng.sample(list(lessons()), 8):
            task = parse_task(lesson.row("code"), "row", "t")
            assert verifier(task, lesson.right(rng)).score == 1.0
            assert verifier(task, lesson.wrong(rng)).score == 0.0
