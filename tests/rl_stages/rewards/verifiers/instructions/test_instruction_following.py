import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.verifiers.instructions import constraints_ifeval
from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints import CHECKS
from cascade_rl.rl_stages.rewards.verifiers.instructions.instruction_following import (
    InstructionFollowingVerifier,
    check_instruction,
    follows,
    parse_row,
)

# id, kwargs, answers that pass, answers that fail
CASES = [
    ("keywords:existence", {"keywords": ["small", "red"]}, ["A Small, red cat."], ["A small cat."]),
    (
        "keywords:frequency",
        {"keyword": "very", "frequency": 2, "relation": "at least"},
        ["Very very old."],
        ["very old"],
    ),
    ("keywords:frequency", {"keyword": "so", "frequency": 2, "relation": "less than"}, ["so"], ["so so"]),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["the", "C++"]},
        ["Other C cats."],
        ["The dog.", "I use C++ daily."],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "E", "let_frequency": 3, "let_relation": "at least"},
        ["Every tree"],
        ["tree"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 3, "relation": "at least"},
        ["one, two... three"],
        [
            "one two - !",
            "नमस्ते दुनिया",
            "வணக்கம் உலகம்",
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u0628\u0631\u0648\u0645",
        ],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 3, "relation": "less than"},
        ["one two"],
        ["one two three"],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        ["It is old. I like it.", "Is it? Yes", "I chose plan B. It worked."],
        ["Dr. Smith has 3.5 cats.", "It is old.", ". . . ."],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["one *** two", "one\n***\ntwo ***"],
        ["one", "one *** two *** three", "one *** *** two", "one\n\ntwo"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Hello"},
        ["one\n\nhello, two", 'one\n\n\n\n"Hello" two'],
        ["hello\n\none", "one\n\nhello\n\nthree", "hello"],
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, ["[a] and [b]"], ["[a] and (b)"]),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Old. P.S. I like it."],
        ["PS I like it."],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.P.S"},
        ["Old.\nP.P.S more"],
        ["Old. P.S. more"],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "intro\n\n- a\n * b"],
        ["* a", "* a\n* b\n* c", "**a**\n**b**"],
    ),
    ("detectable_format:constrained_response", {}, ["My answer is no."], ["no"]),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and *b c*", "**a** and **b**"],
        ["*a*", "** and * *", "*a\nb*"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        ["Section 1 a Section 2 b"],
        ["Section 1 a", "Section a Section b"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": 1}', '```json\n{"a": 1}\n```'],
        ["a: 1", "{'a': 1}", "[" * 100_000],
    ),
    ("detectable_format:title", {}, ["<<The cat>> old"], ["<The cat>", "<<>>", "<< >>"]),
    ("combination:two_responses", {}, ["a ****** b"], ["a", "a ****** a", "a ****** b ****** c", "a *** b"]),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, ["say HI. hi"], ["hi"]),
    ("startend:end_checker", {"end_phrase": "the end"}, ['"It was. The END"'], ["the end."]),
    ("startend:quotation", {}, ['"a"'], ['"', '"a', "'a'"]),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["A BIG cat"],
        ["A big cat", "BIG-CAT cat"],
    ),
    (
        "change_case:english_capital",
        {},
        ["A CAT.", "GOOD MORNING"],
        ["A Cat.", "1.", "\u042d\u0422\u041e \u0422\u0415\u041a\u0421\u0422", "EL GATO ES PEQUEÑO"],
    ),
    (
        "change_case:english_lowercase",
        {},
        ["a cat."],
        ["A cat.", "1.", "\u044d\u0442\u043e \u0442\u0435\u043a\u0441\u0442", "der hund ist klein"],
    ),
    ("punctuation:no_comma", {}, ["a cat"], ["a, cat"]),
]


@pytest.mark.parametrize(("name", "kwargs", "good", "bad"), CASES)
def test_each_constraint_passes_and_fails_as_in_ifeval(name, kwargs, good, bad):
    assert check_instruction(name, kwargs) == kwargs
    assert [follows(answer, name, kwargs) for answer in good] == [True] * len(good)
    assert [follows(answer, name, kwargs) for answer in bad] == [False] * len(bad)
    assert not follows("", name, kwargs)


def test_every_constraint_has_a_case():
    own = {name for name, check in CHECKS.items() if check.__module__ == constraints_ifeval.__name__}
    assert {case[0] for case in CASES} == own
    assert len(own) == 24


def verdict(ids, kwargs, text, **options):
    row = {"instruction_id_list": ids, "kwargs": kwargs, **options}
    task = Task("t", "instruction_following", (), parse_row(row))
    return InstructionFollowingVerifier()(task, text)


def test_score_needs_every_constraint_and_repeated_ids_are_kept_apart():
    ids, kwargs = ["keywords:existence"] * 2, [{"keywords": ["cat"]}, {"keywords": ["dog"]}]
    assert verdict(ids, kwargs, "A cat and a dog.").score == 1.0
    partly = verdict(ids, kwargs, "A cat.")
    assert partly.score == 0.0
    assert partly.parts == {"0:keywords:existence": 1.0, "1:keywords:existence": 0.0}
    assert partly.detail == "not followed: 1:keywords:existence"


@pytest.mark.parametrize("text", ["", "  \n", "<think>no comma", "<think>a</think>", "<think>a</think> \n"])
def test_an_empty_or_unfinished_answer_is_a_wrong_format(text):
    result = verdict(["punctuation:no_comma"], [{}], text)
    assert (result.outcome, result.score) == (Outcome.WRONG_FORMAT, 0.0)


def test_reasoning_is_not_judged():
    assert verdict(["punctuation:no_comma"], [{}], "<think>well, then</think>a cat").score == 1.0
    assert verdict(["keywords:existence"], [{"keywords": ["cat"]}], "<think>cat</think>dog").score == 0.0


def test_the_loose_reading_drops_outer_lines_and_asterisks():
    ids, kwargs = ["change_case:english_lowercase", "keywords:existence"], [{}, {"keywords": ["two"]}]
    text = "Sure, here it is:\none *two*\nHope that helps!"
    assert verdict(ids, kwargs, text).score == 0.0
    assert verdict(ids, kwargs, text, reading="loose").score == 1.0
    assert (
        verdict(["length_constraints:number_words"], [{"num_words": 2, "relation": "less than"}], "a\nb c d").score == 0
    )
    assert verdict(ids[:1], [{}], "Sure", reading="loose").score == 0.0  # what is left must say something


def test_the_fraction_mode_scores_the_share_that_is_met():
    ids, kwargs = ["keywords:existence"] * 4, [{"keywords": [word]} for word in ("a", "b", "c", "z")]
    assert verdict(ids, kwargs, "a b c").score == 0.0
    assert verdict(ids, kwargs, "a b c", grading_mode="fraction").score == 0.75


def test_whole_numbers_written_as_floats_are_whole_numbers():
    assert check_instruction("count:numbers", {"N": 3.0}) == {"N": 3}
    with pytest.raises(UserError, match=r"expected N to be of type int; found 3\.5"):
        check_instruction("count:numbers", {"N": 3.5})


@pytest.mark.parametrize("options", [{"grading_mode": "half"}, {"reading": "sloppy"}])
def test_unknown_options_are_refused(options):
    with pytest.raises(UserError, match="to be one of"):
        verdict(["punctuation:no_comma"], [{}], "a", **options)


def test_fields_may_be_under_verifier_metadata():
    fields = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [None], "grading_mode": "fraction"}
    assert parse_row({"verifier_metadata": fields, "prompt": "x"}) == parse_row(fields)
    with pytest.raises(UserError, match="'verifier_metadata' to be an object"):
        parse_row({"verifier_metadata": []})


def test_null_kwargs_are_dropped():
    assert parse_row({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [None]})["kwargs"] == [{}]
    assert parse_row({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"num_words": None}]})["kwargs"] == [
        {}
    ]


@pytest.mark.parametrize(
    ("ids", "kwargs", "message"),
    [
        (["words:nope"], [{}], "found 'words:nope'"),
        (["language:response_language"], [{"language": "tlh"}], "expected language to be one of af, ar, .*found 'tlh'"),
        (["punctuation:no_comma"], [{"n": 1}], r"expected kwargs \[\]; found \['n'\]"),
        (["keywords:existence"], [{}], r"expected kwargs \['keywords'\]; found \[\]"),
        (["keywords:existence"], [{"keywords": "cat"}], "expected keywords to be of type list"),
        (
            ["detectable_format:number_bullet_lists"],
            [{"num_bullets": True}],
            "expected num_bullets to be of type int",
        ),
        (
            ["length_constraints:number_words"],
            [{"num_words": 3, "relation": "more"}],
            "'less than', 'at least'",
        ),
        (["punctuation:no_comma"], [], "list of 1 objects"),
        ([], [], "non-empty list"),
    ],
)
def test_bad_rows_are_refused(ids, kwargs, message):
    with pytest.raises(UserError, match=message):
        parse_row({"instruction_id_list": ids, "kwargs": kwargs})
