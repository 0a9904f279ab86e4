import time

import pytest

from cascade_rl.rl_stages.rewards.verifiers.maths.boxes import answer_boxes, last_box


def test_last_box_is_balanced_and_last():
    assert last_box(r"\boxed{41} wait, \boxed{42}") == "42"
    assert last_box(r"so \boxed{\frac{1}{2}} it is") == r"\frac{1}{2}"
    assert last_box(r"\boxed{\{1, 2\}}") == r"\{1, 2\}"
    assert last_box(r"\boxed{\left\{ x \right.}") == r"\left\{ x \right."
    assert last_box(r"\boxed{1} and \boxed{2") is None
    assert last_box("42") is None


@pytest.mark.parametrize("mention", [r"I put it in \boxed.", r"It is in \boxed format.", r"See \boxed", r"\boxedtext"])
def test_a_mention_is_no_box(mention):
    """EleutherAI/lm-evaluation-harness#3477"""
    assert last_box(rf"\boxed{{5}}. {mention}") == "5"


@pytest.mark.parametrize(
    "text",
    [r"\boxed{5}", r"\boxed {5}", "\\boxed\n{5}", r"so \boxed 5", r"\boxed5.", r"\fbox{5}", r"\boxed{\boxed{5}}"],
)
def test_other_spellings_of_a_box(text):
    assert last_box(text) == "5"


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        # one sentence
        (r"x=\boxed{2} or x=\boxed{3}", ["2", "3"]),
        (r"$\boxed{1}$, $\boxed{2}$, and $\boxed{3}$", ["1", "2", "3"]),
        (r"\boxed{(3,3)} \text{ for part (a) and } \boxed{(1,1)}", ["(3,3)", "(1,1)"]),
        (r"\boxed{4}\boxed{5}", ["4", "5"]),
        (r"\boxed{4}\quad\boxed{5}", ["4", "5"]),
        ("- \\boxed{4}\n- \\boxed{5}", ["4", "5"]),
        ("1. $\\boxed{4}$\n2. $\\boxed{5}$", ["4", "5"]),
        ("\\boxed{4}\n\n\\boxed{5}", ["4", "5"]),
        (r"\boxed{4} or maybe \boxed{5}", ["4", "5"]),
        (r"\boxed{4} / \boxed{5}", ["4", "5"]),
        (r"$\boxed{4}$ & $\boxed{5}$ \\ \boxed{6}", ["4", "5", "6"]),
        (r"\boxed{4}=\boxed{5}", ["4", "5"]),
        # corrections and conclusions
        (r"\boxed{4}. No: \boxed{5}", ["5"]),
        (r"\boxed{4}, wait, that is wrong, \boxed{5}", ["5"]),
        (r"\boxed{4}, so the answer is \boxed{5}", ["5"]),
        (r"\boxed{1} no no no no no \boxed{2}", ["2"]),
        (r"\boxed{4} and" + " then some" * 10 + r" \boxed{5}", ["5"]),
        ("none", []),
    ],
)
def test_boxes_that_one_sentence_joins_are_one_answer(text, boxes):
    assert answer_boxes(text) == boxes


@pytest.mark.parametrize(
    "piece", ["\\boxed{", "\\boxed{1}", "\\boxed", "\\boxed{{", "\\fbox{1} or ", "\\fbox", "\\boxed{\\"]
)
def test_reading_takes_linear_time(piece):
    started = time.process_time()
    answer_boxes(piece * (200_000 // len(piece)))
    assert time.process_time() - started < 5.0  # quadratic: minutes
