import json
import time

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.verifiers.programs.checkers import (
    CALL_RULES,
    CALL_TOLERANCE,
    STDIN_RULES,
    Checker,
    parse_checker,
)

RULES = STDIN_RULES | CALL_RULES
TOKENS = Checker(STDIN_RULES["tokens"])


def accepts(kind, given, *expected, tolerance=None, rules=STDIN_RULES):
    value = {"kind": kind} | ({} if tolerance is None else {"tolerance": tolerance})
    return parse_checker(value, rules, TOKENS).accepts(given.encode(), expected)


@pytest.mark.parametrize(
    ("kind", "given", "expected", "same"),
    [
        ("exact", "a  b \nc\n\n", "a  b\nc", True),
        ("exact", "a b\nc", "a  b\nc", False),
        ("tokens", "1  2\n3", "1 2 3\n", True),
        ("tokens", "1 2", "1 2 3", False),
        ("tokens", "1.0", "1", False),
        ("tokens", "50000000000000001", "50000000000000000", False),
        ("floats", "0.3333333", "0.33333333333", True),
        ("floats", "0.333", "0.33333333333", False),
        ("floats", "0.0005", "0.0", False),  # within the absolute 1e-3 of others
        ("floats", "0.0000005", "0.0", True),
        ("floats", "50000000.4 yes", "50000000.0 yes", True),
        ("floats", "50000001", "50000000", False),  # two integers
        ("floats", "5", "5.0", True),
        ("floats", "nan", "1.0", False),
        ("floats", "inf", "1e999", False),
        ("floats", "2e999", "1e999", False),
        ("floats", "1e999", "1e999", True),  # the same text
        ("floats", "1_0", "10.0", False),
        ("floats", "x", "1.0", False),
        ("floats", "-0 +5", "0 5", True),
        ("floats", "11", "0011", False),  # of digits, and not a number
        ("floats", "1" + "0" * 9000 + "1.0", "1" + "0" * 9000 + "2.5", True),
        # NeMo-Gym's rule, of its testing_util.py: lines, and in them decimal numbers.
        ("lines", "  1 2 \n3\n\n", "1 2\n3", True),
        ("lines", "1 2 3", "1 2\n3", False),
        ("lines", "1\n\n2", "1\n2", False),
        ("lines", "a  b", "a b", False),
        ("lines", "1  2", "1 2", True),
        ("lines", "5.0", "5", True),
        ("lines", "-0", "0", True),
        ("lines", "5e0", "5", True),
        ("lines", "1.000001", "1", True),
        ("lines", "1.00001", "1", False),
        ("lines", "1000000.5", "1000000", True),
        ("lines", "yes 5.0", "yes 5", False),  # one word is no number
        ("lines", "50000000000000001", "50000000000000000", False),
        ("lines", "11", "0011", False),
        ("lines", "nan", "nan", True),
        ("lines", "1_0", "10", False),
        ("unordered", "b 1\n\na 2\n", "a 2\nb 1", True),
        ("unordered", "a\na\nb", "a\nb\nb", False),
    ],
)
def test_rules_of_printed_text(kind, given, expected, same):
    assert accepts(kind, given, expected) is same


@pytest.mark.parametrize(
    ("kind", "given", "expected", "same"),
    [
        ("json", "[1, 2.0000001]", "[1, 2.0]", True),
        ("json", "[1, 2.001]", "[1, 2.0]", False),
        ("json", "1", "1.0", True),
        ("json", "10000000000000001", "10000000000000000", False),
        ("json", "true", "1", True),  # as `==` in the graders
        ("json", "[1, 0.0]", "[true, false]", True),
        ("json", "1.000009", "1.0", True),
        ("json", "1.00002", "1.0", False),
        ("json", "NaN", "NaN", True),
        ("json", "Infinity", "Infinity", True),
        ("json", "-Infinity", "Infinity", False),
        ("json", "1" + "0" * 5000, "1" + "0" * 5000, True),
        ("json", "1" + "0" * 5000, "1" + "0" * 4999 + "1", False),
        ("json", '{"b": 2, "a": 1}', '{"a": 1, "b": 2}', True),
        ("json", '{"a": [1]}', '{"a": [1]}', True),
        ("json", '{"a": [1], "b": 1}', '{"a": [1]}', False),
        ("json", '"ab"', '"ab"', True),
        ("json", '"1"', "1", False),
        ("json", "NaN", "1.5", False),
        ("json", "not json", "1", False),
        ("json", "1" + "0" * 400, "1.0", False),
        ("unordered", "[[2, 1], [3]]", "[[3], [2, 1]]", True),
        ("unordered", "[[1, 2], [3]]", "[[3], [2, 1]]", False),
        ("unordered", "3", "[3]", False),
    ],
)
def test_rules_of_returned_values(kind, given, expected, same):
    assert accepts(kind, given, expected, rules=CALL_RULES, tolerance=CALL_TOLERANCE) is same


def test_any_of_several_outputs_is_accepted():
    assert accepts("tokens", "b", "a", "b")
    assert not accepts("tokens", "c", "a", "b")


def test_a_task_sets_its_own_tolerance():
    assert not accepts("floats", "1.01", "1.0")
    assert accepts("floats", "1.01", "1.0", tolerance=0.02)
    assert accepts("json", "[1.01]", "[1.0]", tolerance=0.02, rules=CALL_RULES)


def test_a_row_without_a_kind_keeps_the_rule_of_its_format():
    assert parse_checker({"tolerance": 0.5}, STDIN_RULES, TOKENS) == Checker(STDIN_RULES["tokens"], 0.5)


@pytest.mark.parametrize("kind", sorted(RULES))
@pytest.mark.parametrize(
    "given",
    [
        "[" * 500_000,
        "1" * 1_000_000,
        "1 " * 500_000,
        "9e9999 " * 100_000,
        "[" * 900 + "]" * 900,
        "\0" * 1_000_000,
        "1." + "1" * 1_000_000,
    ],
)
def test_hostile_outputs_are_refused_at_once(kind, given):
    expected = json.dumps([1.5])
    rules = STDIN_RULES if kind in STDIN_RULES else CALL_RULES
    start = time.process_time()
    assert not accepts(kind, given, expected, rules=rules)
    assert time.process_time() - start < 1.0


def test_bytes_that_are_no_text_are_another_output():
    assert not parse_checker(None, STDIN_RULES, TOKENS).accepts(b"\xff", ["x"])


@pytest.mark.parametrize(
    "value",
    [
        "exact",
        {"kind": "magic"},
        {"kind": []},
        {"tolerance": "1"},
        {"tolerance": True},
        {"tolerance": 1},
        {"kinds": "exact"},
    ],
)
def test_unknown_checkers_are_refused(value):
    with pytest.raises(UserError, match="expected "):
        parse_checker(value, STDIN_RULES, TOKENS)
