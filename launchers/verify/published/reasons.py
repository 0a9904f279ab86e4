"""Why scores differ from published ones. A difference without an entry here is not explained."""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """`told` is a part of the answer's id with our verdict, or with why we refuse the row."""

    package: str
    group: str
    told: str
    why: str


CLOSED_ONCE = "a place that several schemas describe is closed once, around all of them (NVIDIA-NeMo/Gym#1103)"
OTHER_DOCUMENTS = "a row's schema is one document, without references to others and without an $id of its parts"
STRICT = "a row's schema is made strict"
OF_SUITE = (
    ("$dynamicRef", "a row with $dynamicRef is refused"),
    ("without references to other documents", OTHER_DOCUMENTS),
)
VALID_IN_SUITE = (
    ("is a required property", f"{STRICT}: every property is required"),
    ("Additional properties", f"{STRICT}: no other property is allowed"),
    ("Unevaluated properties", f"{STRICT}: no other property is allowed"),
    ("is not of type", f"{STRICT}: a schema with properties or items describes an object or a list"),
    ("is not valid under any", f"{STRICT}, and so are the branches of a choice"),
    ("is not a '", "formats are checked, which the standard leaves open"),
)
INVALID_IN_SUITE = (
    ("additionalProperties can't see bar", CLOSED_ONCE),
    ("dependent subschema incompatible with root", CLOSED_ONCE),
    ("in-place applicator siblings", CLOSED_ONCE),
)
REFUSED = "the test is that such a row scores anything; here it is refused when it is read"
EACH_CALL = "the test is of a server that allows more calls than are expected; here none is"
TESTS_OF_GYM = (
    ("gpqa_diamond", "names one option; found none", "the server reads `Answer: C` whatever its row asks for"),
    ("ifbench", "expected an instruction id", REFUSED),
    ("math_with_judge", "expected 'expected_answer'", REFUSED),
    ("math_with_judge", "expected \\boxed", "an answer without a box"),
    ("mcqa", "'output_regex'", REFUSED),
    ("mcqa", "'options'", REFUSED),
    ("mcqa", "C against C", "`**Answer: C**` counts in both modes"),
    ("mcqa", "test_invalid_rightmost_answer_fallback", "`Answer: B`, then `Answer: A/B/C`, names no option"),
    ("single_step_tool_use_with_argument_comparison", "calls where 2 are expected", EACH_CALL),
    ("workplace_assistant", "'ground_truth' calls that the tools accept", "the ground truth reads a deleted e-mail"),
)
SAYS_NOTHING = (
    "a text of one sentence or line, or without quotes, says nothing about the constraint; upstream passes it"
)
BY_UPSTREAM = (
    ("ifbench", "format:line_indent", SAYS_NOTHING),
    ("ifbench", "format:quotes", SAYS_NOTHING),
    ("ifbench", "words:last_first", SAYS_NOTHING),
    ("ifbench", "format:sub-bullets", "upstream takes the asterisks of bold words for bullets"),
    ("ifbench", "custom:csv_city", "upstream counts empty lines at the end as rows"),
    ("ifeval", "change_case:english_", "langdetect takes short texts, and capitals, for other languages"),
)
NO_TRACE = "the row's last state and what was returned are the same: BFCL reads no calls"
BY_STATES = (
    ("in reverse", "calls match", "a batch of calls has no order here, as in Gym; these calls depend on each other"),
    *((kind, "", NO_TRACE) for kind in ("without a call", "with another name", "with another value")),
)
CONTRADICTION = "the answer contradicts itself"
REASONS = (
    Reason("nemo-gym", "structured_outputs", "", "the wheel has the rollout without its schema"),
    Reason("nemo-gym", "workplace_assistant", "'ground_truth'", "the wheel has the rollout without its ground truth"),
    Reason("nemo-gym", "gpqa_diamond", "'options'", "the wheel has the rollout without its options"),
    Reason(
        "nemo-gym",
        "nemo_fabric_deepagents_reasoning_gym",
        "reasoning-gym scores 1",
        "the server takes the reasoning for a part of the answer; here only what follows it is scored",
    ),
    Reason("nemo-gym", "mcqa", "C against C", "a letter beside its option's text, in a box, is an answer"),
    *(Reason("nemo-gym", f"{group}, its tests", told, why) for group, told, why in TESTS_OF_GYM),
    *(Reason("bfcl-eval", f"multi_turn_base, states {kind}", told, why) for kind, told, why in BY_STATES),
    Reason("math-verify", "test_all", "x = 5+5+1 =", CONTRADICTION),
    Reason("math-verify", "test_all", "z = 3+3 = 2 against", CONTRADICTION),
    Reason("math-verify", "test_all", "x=1/3\\approx1.3", CONTRADICTION),
    Reason("math-verify", "test_all", "255 against 10455", "the last box has another value than the text after it"),
    Reason("math-verify", "test_all", "less than or equal to zero", "the boxed answer is a sentence"),
    Reason("math-verify", "test_all", "\\boxed{1}\\boxed{2}", "two boxes inside of a box"),
    Reason("math-verify", "test_boxed", "++++++", "two boxes with signs between them"),
    Reason("math-verify", "test_numina_cases", "p=5,q=2;p=7,q=2", "lists of named values are not read"),
    Reason("math-verify", "test_yujianll", "1 - \\frac{1}{\\mathrm{e}}", "its own error: the values differ"),
    *(Reason("jsonschema", "documents, valid", *each) for each in (*OF_SUITE, *VALID_IN_SUITE)),
    *(Reason("jsonschema", "documents, invalid", *each) for each in (*OF_SUITE, *INVALID_IN_SUITE)),
    Reason("jsonschema", "formats, invalid", "idn-hostname", "the format is an annotation"),
    Reason("jsonschema", "formats, invalid", "ecmascript-regex", "the format is checked by Python's `re`"),
    *(Reason("if-verifiable", *each) for each in BY_UPSTREAM),
    Reason("yamlcore", "scalars", "not finite", "JSON, in which documents are compared, has no such number"),
)


def reason(package: str, group: str, told: str) -> str:
    """The reason, or an empty text."""
    fitting = (one.why for one in REASONS if (one.package, one.group) == (package, group) and one.told in told)
    return next(fitting, "")
