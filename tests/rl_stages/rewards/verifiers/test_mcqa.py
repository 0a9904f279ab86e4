import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.verifiers import mcqa
from cascade_rl.rl_stages.rewards.verifiers.mcqa import MultipleChoiceVerifier, parse_row
from cascade_rl.rl_stages.rewards.verifiers.option_letters import option_letter
from tests.rl_stages.rewards.verifiers.growth import superlinear

OPTIONS = [{"A": "Aspirin"}, {"B": "Vitamin C"}, {"C": None}, {"D": "Both of  these"}]
ROW = {"options": OPTIONS, "expected_answer": "B"}
SELECTED = {"template_metadata": {"output_regex": r"Option Selected:\s*([A-Za-z])\s*"}}
COLON = {"grading_mode": "lenient_answer_colon"}
MARKDOWN = {"grading_mode": "lenient_answer_colon_md"}
GERMAN = MARKDOWN | {"template_metadata": {"answer_prefix": "Die Antwort ist"}}
JAPANESE = MARKDOWN | {"template_metadata": {"answer_prefix": "答えは", "output_regex": r"答えは \(?([A-D])\)? です"}}
LENIENT = {"grading_mode": "lenient_boxed"}
STATED = {"template_metadata": {"output_regex": r"answer is \(?([A-D])\)?"}}


def verdict(text, fields=None):
    return MultipleChoiceVerifier()(Task("t", "mcqa", (), parse_row(ROW | (fields or {}))), text)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, r"\boxed{B}"),
        ({}, r"\boxed{A} no, \boxed{B}"),
        (GERMAN, "Die Antwort ist (B)."),
        (GERMAN, "die antwort ist A. Nein: Die Antwort ist Vitamin C"),
        (GERMAN, "Die Antwort ist klar.\nAnswer: B"),
        (GERMAN, r"Also \boxed{B}"),
        (JAPANESE, "段階的に考える。答えは\uff08B\uff09です。"),
        ({}, r"\boxed{A}. Wait, the right one is: \boxed{B}"),
        ({}, r"\boxed{A}, correction: \boxed{B}"),
        ({}, r"\boxed{\text{B}}"),
        ({}, r"\boxed{\textbf{(B)}}"),
        ({}, r"$\boxed{ (B). }$"),
        ({}, r"<think>\boxed{A}</think>\boxed{B}"),
        ({}, r"\boxed{B: Vitamin C}"),  # NVIDIA-NeMo/Gym#1844
        ({}, r"\boxed{B) the one that is an acid}"),
        ({}, r"\boxed{(B) Vitamin C}"),
        ({}, r"\boxed{[B]}"),
        ({}, r"\boxed{\text{B: Vitamin C}}"),
        ({}, r"\boxed{\textbf{B}. \text{Vitamin C}}"),
        ({}, r"\boxed{\boxed{**B**}}"),
        ({}, r"\boxed{B - Vitamin C}"),
        ({}, r"\boxed{B \quad Vitamin C}"),
        ({}, r"\boxed{B~\text{Vitamin C}}"),
        ({}, r"\boxed{\texttt{B}}"),
        ({}, r"\boxed{\emph{B}}"),
        ({}, r"\boxed{\large\bf B}"),
        ({}, r"\boxed{\underline{B}}"),
        ({}, r"\boxed{\color{red}{B}}"),
        ({}, r"\boxed{\textcolor{red}{B} \checkmark}"),
        ({}, r"\boxed{B = Vitamin C}"),
        ({}, "\\boxed{B}\n\nIt is in \\boxed."),
        ({}, r"\boxed{\{B\}}"),
        ({}, r"\boxed{'B'}"),
        ({}, r"\boxed{The answer is B}"),
        ({}, r"\boxed{\text{Option B}}"),
        ({}, r"\boxed{B}, that is \boxed{B}"),
        (LENIENT, r"\boxed{B}"),
        (LENIENT, r"\boxed{\text{vitamin  c}}"),
        (LENIENT, r"\boxed{B. Vitamin C}"),
        (COLON, "Answer: A\nno\nAnswer: B"),
        (COLON, r"answer: \text{B}"),
        (COLON, "Answer: Vitamin C"),
        (COLON, "Answer: B because it is one."),  # jundot/omlx#3668
        (COLON, "Answer: B because A is not an acid"),
        (COLON, "Answer: B, not A"),
        (COLON, "Answer: B, A was wrong"),
        (COLON, "Answer: B - Vitamin C"),
        (COLON, "Answer: The correct option is B."),
        (COLON, "Answer: The correct option is B, not A."),
        (COLON, "Answer: It must be B, given that A fails"),
        (COLON, "Answer: The best choice is B, while D holds A"),
        (COLON, "Answer: B because otherwise D would hold"),
        (COLON, "Answer: It is Vitamin C (B)"),
        (COLON, "Answer: Vitamin C (B)"),
        (COLON, r"Answer: \(Vitamin C\)"),
        (COLON, "Answer: I think that it is B"),
        (COLON, "Answer:\nB"),
        (COLON, "Answer:\n\n**B**\n\nIt is an acid."),
        (COLON, "Answer: B\u3002"),
        (COLON, "Answer\uff1aB"),
        (COLON, "Answer: B/B"),
        (COLON, "Answer: A. Answer: B"),
        (COLON, "Answer: B\nAnswer: see above"),
        (COLON, "Answer: $B$"),
        (COLON, r"\boxed{\text{Answer: B}}"),
        (MARKDOWN, "so\n**Answer: B**"),
        (MARKDOWN, "__Answer__: (B)"),
        (SELECTED, "Option Selected: A. Wait.\nOption Selected: b"),
        (SELECTED, "Option Selected: B, because it is acid"),
        (SELECTED, "Option Selected: B and that is all"),
        (STATED, "The answer is B, A was wrong"),
        (STATED, "The answer is B, D being a decoy"),
        (STATED, "The answer is (B), not (A)"),
        (STATED, "The answer is B. A and D are wrong"),
        (STATED, "The answer is B because A or D would fail"),
        (STATED, "The answer is (B) rather than A\nA is no acid"),
        ({"template_metadata": {"output_regex": ["no ([A-Z])", r"is: (\w+ ?\w*)"]}}, "it is: Vitamin C"),
        (SELECTED, r"Answer: \boxed{{B}}"),  # so written by Gym's own templates, which double the braces
        ({"template_metadata": {"output_regex": "الجواب: (.)"}}, "الجواب: ب"),
    ],
)
def test_the_expected_option_scores_one(fields, text):
    result = verdict(text, fields)
    assert (result.outcome, result.score) == (Outcome.COMPLETED, 1.0)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, r"\boxed{A}"),
        ({}, r"\boxed{B}, no, \boxed{D}"),
        ({}, r"\boxed{A: it is an acid}"),
        (COLON, "Answer: A because vitamin C is no acid"),
        (COLON, "Answer: A is right, B is wrong"),
        (LENIENT, r"\boxed{Both of these}"),
        (COLON, "Answer: B\nAnswer: A"),
        (SELECTED, "Option Selected: B\nOption Selected: A"),
    ],
)
def test_another_option_scores_zero(fields, text):
    result = verdict(text, fields)
    assert (result.outcome, result.score) == (Outcome.COMPLETED, 0.0)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, ""),
        ({}, "B"),
        ({}, r"\boxed{B"),
        ({}, r"<think>\boxed{B}"),
        ({}, r"<think>\boxed{B}</think>done"),
        ({}, r"\boxed{A/B}"),
        ({}, r"\boxed{B: Vitamin C or A: Aspirin}"),
        (COLON, "Answer: B? D?"),
        (COLON, "Answer: option B, option D"),
        (COLON, "Answer: \u2018B\u2019, \u2018D\u2019"),
        (COLON, "Answer: B -> D"),
        (COLON, "Answer: anything but B"),
        (COLON, "Answer: B if it is an acid, otherwise A"),
        (COLON, "Answer: B unless it is a drug, then A."),
        (STATED, "The answer is B-cells"),
        ({}, r"\boxed{A, B}"),
        ({}, r"\boxed{B or A}"),
        ({}, r"\boxed{\text{A}\text{B}}"),
        ({}, r"\boxed{A}, \boxed{B}"),
        ({}, r"\boxed{A} or $\boxed{B}$"),
        ({}, r"\boxed{A} \\ \boxed{B}"),
        ({}, r"fig: \boxed{A} or blue: \boxed{B}"),
        ({}, r"one = \boxed{A}, two = \boxed{B}"),
        ({}, r"\boxed{A: Vitamin C}"),  # one option's letter beside another's text
        ({}, r"\boxed{B: Aspirin}"),
        ({}, r"\boxed{B: or A}"),
        ({}, r"\boxed{B) A)}"),
        ({}, r"\boxed{B-D}"),
        ({}, r"\boxed{A. B. D.}"),
        ({}, r"\boxed{B: Vitamin C, D: Both of these}"),
        ({}, r"\boxed{B, or maybe A}"),
        ({}, r"\boxed{\neq B}"),
        ({}, r"\boxed{not B}"),
        ({}, r"\boxed{B-cells}"),
        ({}, r"\boxed{A polygenic risk score}"),
        ({}, r"\boxed{C}"),  # an option without a text is none
        ({}, r"\boxed{Vitamin C}"),  # only the lenient mode reads texts
        (LENIENT, r"\boxed{not vitamin C}"),
        (LENIENT, r"\boxed{A. Vitamin C}"),
        (COLON, "Answer: B or A"),
        (COLON, "Answer: A, B, D"),
        (COLON, "Answer: A to D"),
        (COLON, "Answer: A B D"),
        (COLON, "Answer: A, B and D are all correct"),
        (COLON, "Answer: A, B are both correct"),
        (COLON, "Answer: A. B. D."),
        (COLON, "Answer: B or even A"),
        (COLON, "Answer: (B) or (A)"),
        (COLON, "Answer: B, or maybe A"),
        (COLON, "Answer: B (it could also be A)"),
        (COLON, "Answer: either A or B"),
        (COLON, "Answer: not B"),
        (COLON, "Answer: it isn't B"),
        (COLON, "Answer: B is wrong"),
        (COLON, "Answer: B\nAnswer: A/B/D"),
        (COLON, "Answer: B - Aspirin"),
        (COLON, "Answer: Aspirin (B)"),
        (COLON, "Answer: a headache"),
        (COLON, "Answer: A headache"),
        (COLON, "The answer is B."),
        (MARKDOWN, "**Answer: A/B**"),
        (MARKDOWN, "Answer: Beta"),
        (SELECTED, "Option Selected: B/A"),
        (SELECTED, "Option Selected: B, A"),
        (SELECTED, "Option Selected: b/a"),
        (SELECTED, "Option Selected: B or A"),
        (STATED, "The answer is B or A"),
        (STATED, "The answer is B, maybe A"),
        (STATED, "The answer is B, A and D"),
        (SELECTED, "Option Selected: Beta"),
        (SELECTED, "Option Selected: Z"),
        (SELECTED, r"\boxed{A/B}"),
    ],
)
def test_no_single_option_is_a_wrong_format(fields, text):
    result = verdict(text, fields)
    assert (result.outcome, result.score) == (Outcome.WRONG_FORMAT, 0.0)


def test_an_expression_that_does_not_end_masks_nothing(monkeypatch):
    monkeypatch.setattr(mcqa, "MATCH_SECONDS", 0.1)
    result = verdict("a" * 60, {"template_metadata": {"output_regex": "(?:a|aa)+!"}})
    assert (result.outcome, result.score) == (Outcome.WRONG_FORMAT, 0.0)


REPEATED = (
    *(
        " ",
        "\n",
        ".",
        "(",
        "[",
        "**",
        "$",
        "{",
        "}",
        "A",
        "A ",
        "A, ",
        "A/",
        "A or ",
        "B. ",
        "b) ",
        "(A",
        "(A, ",
        "I ",
        ",\n",
    ),
    *(
        r"\boxed{",
        r"\boxed{A}",
        r"\boxed{A} ",
        r"\text{",
        r"\text{B}",
        r"\ ",
        "Answer:",
        "Answer:\n",
        "answer ",
        "Answer: B\n",
    ),
    *(
        "Answer: so ",
        "Answer: A/B\n",
        "answer**",
        "or ",
        "maybe ",
        "might be ",
        "not ",
        "option ",
        "is ",
        "B: a, ",
        "A: ",
        "so A B ",
    ),
    *("Option Selected: ", "Option Selected: A/", "Vitamin C"),
)


@pytest.mark.parametrize(
    ("fields", "head"),
    [
        *[(LENIENT, head) for head in ("", r"\boxed{", r"\boxed{B: ", r"\boxed{so ")],
        *[(MARKDOWN, head) for head in ("", "Answer: so ", "Answer: B ")],
        (SELECTED, "Option Selected: B"),
    ],
)
def test_an_answer_is_read_in_a_time_linear_in_its_length(fields, head):
    task, verifier = Task("t", "mcqa", (), parse_row(ROW | fields)), MultipleChoiceVerifier()
    read = [piece for piece in REPEATED if superlinear(lambda text: verifier(task, head + text), piece, " z}")]
    assert read == []


@given(st.text(max_size=30))
def test_only_one_bare_letter_is_a_letter(text):
    letters = [character for character in text if character.isalpha()]
    if option_letter(text, {"A": "x", "B": "y"}):
        assert len(letters) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"options": None}, "'options' to be two or more"),
        ({"options": [{"A": "x"}]}, "'options' to be two or more"),
        ({"options": [{"A": "x"}, {"a": "y"}]}, "no letter twice"),
        ({"options": [{"A": "x"}, {"AB": "y"}]}, "'options' to be two or more"),
        ({"options": [{"A": "x"}, {"B": 3}]}, "'options' to be two or more"),
        ({"expected_answer": "C"}, "one of A, B, D; found 'C'"),
        ({"expected_answer": None}, "one of A, B, D; found None"),
        ({"grading_mode": "fuzzy"}, "found 'fuzzy'"),
        ({"template_metadata": {"output_regex": "("}}, "'output_regex' to be an expression"),
        ({"template_metadata": {"output_regex": "(a)(b)"}}, "at most one group"),
        ({"template_metadata": {"output_regex": [3]}}, "at most one group"),
        ({"template_metadata": {"answer_prefix": 3}}, "'answer_prefix' to be text; found 3"),
        ({"template_metadata": []}, "'template_metadata' to be an object"),
    ],
)
def test_bad_rows_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        parse_row(ROW | fields)
