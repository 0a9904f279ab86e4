from dataclasses import replace

import pytest

from cascade_rl.rl_stages.rewards.swe.exam import FEWEST, LOOK_ALIKES, LOOK_ALIKES_OF_OTHERS, OTHERS, Exam
from cascade_rl.rl_stages.rewards.swe.instance import Instance
from tests.rl_stages.rewards.swe.tiny_package import REPOSITORY

PATH = "tests/test_lists.py"
MEAN, COUNT = f"{PATH}::test_mean", f"{PATH}::TestCount::test_count"
OTHER = [f"{PATH}::test_{name}" for name in ("window", "between", "clamp", "power", "has")]
INSTANCE = Instance("a", "b", REPOSITORY, "", (MEAN, COUNT, *OTHER), (), (MEAN,))


def honest(paper, *passing_look_alikes: str) -> dict[str, str]:
    """What a repair answers."""
    functions = [paper.names.get(test, test) for test in INSTANCE.must_pass]
    failed = {here: "failed" for here, name in paper.look_alikes.items() if name not in passing_look_alikes}
    return dict.fromkeys((*functions, *paper.look_alikes), "passed") | failed


def test_the_tests_that_fail_and_some_others_are_asked():
    counts = {question.function: len(question.look_alikes) for question in Exam(INSTANCE).questions}
    assert len(counts) == 1 + OTHERS and counts.pop(MEAN) == LOOK_ALIKES
    assert set(counts.values()) == {LOOK_ALIKES_OF_OTHERS}
    unknown = Exam(replace(INSTANCE, fail_to_pass=()))
    assert {len(question.look_alikes) for question in unknown.questions} == {FEWEST}
    assert len(unknown.questions) == len(INSTANCE.must_pass)


def test_names_and_order_are_new_on_each_paper():
    exam = Exam(INSTANCE)
    papers = [exam.paper(REPOSITORY.tests) for _ in range(3)]
    assert len({paper.names[MEAN] for paper in papers}) == len({paper.tests[PATH] for paper in papers}) == 3
    for paper in papers:
        compile(paper.tests[PATH], PATH, "exec")
        assert f"def {paper.names[MEAN].rpartition('::')[2]}()" in paper.tests[PATH]
        assert "def test_mean()" not in paper.tests[PATH]


def test_who_lets_all_pass_or_guesses_is_wrong_and_a_repair_is_not():
    paper = Exam(INSTANCE).paper(REPOSITORY.tests)
    answers = honest(paper)
    assert paper.wrong(INSTANCE, answers) == set()
    assert paper.wrong(INSTANCE, dict.fromkeys(answers, "passed")) == set(paper.look_alikes.values())
    guess = next(iter(paper.look_alikes))
    swapped = answers | {guess: "passed", paper.names[paper_test(paper, guess)]: "failed"}
    assert paper.wrong(INSTANCE, swapped) == {paper.look_alikes[guess], paper_test(paper, guess)}
    assert paper.wrong(INSTANCE, {}) == set(INSTANCE.must_pass)


def paper_test(paper, look_alike: str) -> str:
    return paper.look_alikes[look_alike].partition(" of ")[2]


def test_parameters_follow_the_name_and_one_that_fails_is_enough_for_a_look_alike():
    instance = replace(INSTANCE, must_pass=(f"{MEAN}[1]", f"{MEAN}[2]"), fail_to_fail=(f"{MEAN}[3]",))
    paper = Exam(instance).paper(REPOSITORY.tests)
    here = paper.names[MEAN]
    look_alikes = {f"{name}[1]": "passed" for name in paper.look_alikes}
    failing = {f"{name}[2]": "failed" for name in paper.look_alikes}
    right = {f"{here}[1]": "passed", f"{here}[2]": "passed", f"{here}[3]": "failed"}
    assert paper.wrong(instance, right | look_alikes | failing) == set()
    assert paper.wrong(instance, right | {f"{here}[3]": "passed"}) == {f"{MEAN}[3]"}
    assert paper.wrong(instance, right | look_alikes) == set(paper.look_alikes.values())


def test_a_look_alike_that_the_golden_patch_passes_is_no_fault():
    exam = Exam(INSTANCE)
    name = f"look-alike 1 of {MEAN}"
    assert not exam.right_all_the_same({name})
    exam.learn({name, MEAN})
    assert exam.right_all_the_same({name}) and not exam.right_all_the_same({name, MEAN})


@pytest.mark.parametrize("wrong", [MEAN, f"look-alike 1 of {MEAN}"])
def test_what_the_golden_patch_gets_wrong_is_not_asked_again(wrong):
    exam = Exam(INSTANCE)
    exam.learn({wrong})
    assert exam.learned and exam.excuses({wrong}) and not exam.excuses({wrong, COUNT})
    names = [name for question in exam.questions for name in (question.function, *question.look_alikes)]
    assert wrong not in names and (f"look-alike 2 of {MEAN}" in names) is (wrong != MEAN)


def test_an_exam_that_the_golden_patch_cannot_take_is_none():
    exam = Exam(INSTANCE)
    exam.give_up()
    assert exam.questions == [] and exam.paper(REPOSITORY.tests).tests == {} and exam.excuses({"anything"})
