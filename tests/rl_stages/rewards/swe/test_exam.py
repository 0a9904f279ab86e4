from dataclasses import replace

import pytest

from cascade_rl.rl_stages.rewards.swe.exam import Exam
from cascade_rl.rl_stages.rewards.swe.instance import Instance
from tests.rl_stages.rewards.swe.tiny_package import REPOSITORY

PATH = "tests/test_lists.py"
LARGEST, MEAN = f"{PATH}::test_largest", f"{PATH}::test_mean"
ROWS = tuple(f"{LARGEST}[values{row}-{place}]" for row, place in enumerate((1, -1, -1, 1)))
INSTANCE = Instance("a", "b", REPOSITORY, "", (*ROWS, MEAN), (), (ROWS[0], MEAN))


def answers(exam: Exam) -> tuple[dict[str, str], dict[int, set[str]]]:
    """What a repair makes of the exam's tests."""
    shown = [f"{LARGEST}[values{row}-sealed-{row}.]" for row in range(4)] if len(exam.seals) == 5 else ROWS
    return dict.fromkeys((*shown, MEAN), "passed"), {number: {seal.form} for number, (_, seal) in exam.seals.items()}


def test_a_box_sees_no_value_that_a_test_that_failed_expects():
    exam = Exam(INSTANCE)
    text = exam.paper(REPOSITORY.tests).tests[PATH]
    assert "mean([2, 4]) == sealed_value(4)" in text and "([1, 3, 2], sealed_value(0)), ([], sealed_value(1))" in text
    assert "count([1, 2, 1], 1) == 2" in text  # of a test that passes before the repair
    assert [seal.form for _, seal in exam.seals.values()] == ["1", "-1", "-1", "1", "3"]


def test_truths_of_a_test_that_failed_are_among_those_of_all_others():
    between, has = f"{PATH}::test_between", f"{PATH}::test_has"
    exam = Exam(replace(INSTANCE, must_pass=(between, has, MEAN), fail_to_pass=(has,)))
    assert [seal.function for _, seal in exam.seals.values()] == ["test_has"] * 2 + ["test_between"] * 4
    shown = {exam.paper(REPOSITORY.tests).tests[PATH] for _ in range(50)}
    assert len(shown) > 10 and all("mean([2, 4]) == 3" in text for text in shown)


def test_where_it_is_unknown_which_tests_fail_all_are_sealed():
    unknown = Exam(replace(INSTANCE, fail_to_pass=(), must_pass=(MEAN, f"{PATH}::TestCount::test_count")))
    assert [seal.form for _, seal in unknown.seals.values()] == ["2", "0", "3"]


def test_a_repair_is_right_and_who_only_lets_all_pass_is_wrong():
    exam = Exam(INSTANCE)
    paper, (outcomes, seen) = exam.paper(REPOSITORY.tests), answers(exam)
    assert paper.wrong(INSTANCE, outcomes, seen) == set()
    assert paper.wrong(INSTANCE, outcomes, {}) == {f"{LARGEST}: value {n}" for n in range(4)} | {f"{MEAN}: value 4"}
    assert paper.wrong(INSTANCE, outcomes, seen | {4: {"3", "5"}}) == {f"{MEAN}: value 4"}
    assert paper.wrong(INSTANCE, {}, seen) == set(INSTANCE.must_pass)
    strict = replace(INSTANCE, fail_to_fail=(MEAN,))
    assert paper.wrong(strict, outcomes, seen) == {MEAN}


def test_what_the_golden_patch_cannot_show_is_not_sealed_again():
    exam = Exam(INSTANCE)
    exam.learn({f"{MEAN}: value 4"})
    assert exam.learned and exam.excuses({f"{MEAN}: value 4"}) and not exam.excuses({f"{MEAN}: value 4", ROWS[1]})
    assert list(exam.seals) == [0, 1, 2, 3]


@pytest.mark.parametrize("row", ROWS)
def test_a_test_that_the_golden_patch_fails_is_not_sealed_again(row):
    exam = Exam(INSTANCE)
    exam.learn({row})
    assert list(exam.seals) == [4]
    outcomes, seen = answers(exam)
    assert exam.paper(REPOSITORY.tests).wrong(INSTANCE, outcomes, seen) == set()


def test_an_exam_that_the_golden_patch_cannot_take_is_none():
    exam = Exam(INSTANCE)
    exam.give_up()
    assert exam.seals == {} and exam.paper(REPOSITORY.tests).tests == {} and exam.excuses({"anything"})
