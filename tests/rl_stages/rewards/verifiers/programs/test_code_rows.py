import json
import random
import zlib
from base64 import b64encode

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.rewards.verifiers.programs.checkers import CALL_RULES, STDIN_RULES, Checker
from cascade_rl.rl_stages.rewards.verifiers.programs.code_rows import SpecialJudge, parse_row

TESTS = {"inputs": ["1\n", "2\n"], "outputs": ["2\n", ["4\n", "five\n"]]}
CALLS = {"inputs": ['[1, 2]\n"a"', '[]\n"b"'], "outputs": ["true", "[1]"], "fn_name": "find"}
GYM = {"verifier_metadata": {"unit_tests": TESTS, "difficulty": "easy"}}
TACO = {"input_output": json.dumps(CALLS)}
LIVECODEBENCH = {
    "public_test_cases": json.dumps([{"input": "1", "output": "2", "testtype": "functional"}]),
    "private_test_cases": json.dumps([{"input": "3", "output": "4", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "twice"}),
}
HUMAN_EVAL = {
    "prompt": 'def twice(x):\n    """Two x."""\n',
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
    "entry_point": "twice",
    "canonical_solution": "    return 2 * x\n",
}
ROWS = (GYM, TACO, LIVECODEBENCH, HUMAN_EVAL)


def problem(row):
    return parse_row(row)["problem"]


def gym(tests=TESTS, **options):
    return {"verifier_metadata": {"unit_tests": tests, **options}}


def test_rows_of_nemo_gym():
    read = problem(GYM)
    assert (read.language, read.mode, read.function) == ("python", "stdin", None)
    assert read.inputs == (b"1\n", b"2\n")
    assert read.accepted == (("2\n",), ("4\n", "five\n"))
    assert read.checker == Checker(STDIN_RULES["lines"])
    assert (read.limits.cpu_seconds, read.limits.memory_mib) == (10.0, 1024)


def test_compressed_tests_of_nemo_gym_are_the_same_tests():
    def packed(content):
        return b64encode(zlib.compress(content)).decode()

    tests = {"packed": packed(json.dumps({"inputs": ["1\n[2]"], "outputs": ["3"]}).encode()), "fn_name": "f"}
    read = problem(gym(tests))
    assert (read.function, read.inputs, read.accepted) == ("f", (b"[1, [2]]",), (("3",),))
    for damaged in (tests["packed"][:-9], "?", 5, packed(b"[]"), packed(b"{"), packed(b"\xff")):
        with pytest.raises(UserError, match="expected "):
            problem(gym({"packed": damaged}))


def test_arguments_come_one_a_line():
    read = problem(TACO)
    assert (read.mode, read.function) == ("call", "find")
    assert [json.loads(given) for given in read.inputs] == [[[1, 2], "a"], [[], "b"]]
    assert read.accepted == (("true",), ("[1]",))


def test_rows_of_livecodebench_join_public_and_private_tests():
    read = problem(LIVECODEBENCH)
    assert (read.mode, read.function, read.inputs) == ("call", "twice", (b"[1]", b"[3]"))
    assert read.accepted == (("2",), ("4",))


def test_rows_of_human_eval_become_assertions_in_a_unit_of_their_own():
    read = problem(HUMAN_EVAL)
    assert (read.mode, read.function, read.checker) == ("assert", "twice", None)
    assert read.inputs == (("\n" + HUMAN_EVAL["test"] + "\ncheck(twice)\n").encode(),)
    assert read.prologue == HUMAN_EVAL["prompt"] + "\n"


def test_assertions_may_use_what_the_prompt_defines_before_the_function():
    row = HUMAN_EVAL | {"prompt": "import math\ndef half(x): return x / 2\n" + HUMAN_EVAL["prompt"]}
    assert problem(row).inputs[0].startswith(b"import math\ndef half(x): return x / 2\n\ndef check(")


def test_the_rule_of_a_format_is_that_of_its_grader():
    """Those of TACO and APPS compare words, the others lines."""
    taco = {"input_output": json.dumps(TESTS)}
    stdin = [{"input": "1", "output": "2", "testtype": "stdin"}]
    rules = [problem(row).checker for row in (taco, GYM, {"public_test_cases": stdin}, TACO)]
    names = [("floats", 1e-6), ("lines", 1e-6), ("lines", 1e-6), ("json", 1e-5)]
    assert rules == [Checker((STDIN_RULES | CALL_RULES)[name], tolerance) for name, tolerance in names]


def test_a_program_may_print_what_is_expected_however_long_it_is():
    long = problem(gym({"inputs": ["1"], "outputs": ["1 " * (1 << 20)]}))
    assert long.limits.output_bytes > 2 << 20
    with pytest.raises(UserError, match="at most 32 MiB; found 33554433 bytes"):
        problem(gym({"inputs": ["1"], "outputs": ["1" * ((32 << 20) + 1)]}))


def test_numbers_of_any_length_are_read():
    digits = "1" + "0" * 5000
    read = problem(gym({"inputs": [f"[{digits}]\n2"], "outputs": [digits], "fn_name": "f"}))
    assert read.inputs == (f"[[{digits}], 2]".encode(),)


def test_a_row_sets_language_limits_and_checker():
    read = problem(gym(language="cpp", cpu_seconds=2, memory_mib=256, checker={"kind": "floats", "tolerance": 1e-3}))
    assert (read.language, read.limits.cpu_seconds, read.limits.memory_mib) == ("cpp", 2, 256)
    assert read.checker == Checker(STDIN_RULES["floats"], 1e-3)
    judge = {"kind": "judge", "source": "exit(0)"}
    assert problem(gym(checker=judge)).checker == SpecialJudge("python", "exit(0)")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "expected tests in 'verifier_metadata.unit_tests', "),
        (gym(None), "expected tests as "),
        (gym({"inputs": [], "outputs": []}), "one or more"),
        (gym({"inputs": ["1"], "outputs": []}), "as many 'outputs' as 'inputs'"),
        (gym({"inputs": [1], "outputs": ["1"]}), "expected 'inputs' to be Unicode text; found 1"),
        (gym({"inputs": ["\ud800"], "outputs": ["1"]}), "expected 'inputs' to be Unicode text"),
        (gym({"inputs": ["1"], "outputs": [[]]}), "expected an accepted output"),
        (gym({"inputs": ["x"], "outputs": ["1"], "fn_name": "f"}), "expected 'inputs' to be JSON text; found 'x'"),
        (gym({"inputs": ["1"], "outputs": ["x"], "fn_name": "f"}), "expected 'outputs' to be JSON text; found 'x'"),
        (gym(TESTS | {"fn_name": "a b"}), "expected 'fn_name' to be"),
        (gym(CALLS, language="cpp"), "expected tests on stdin for C"),
        (gym(language="java"), "expected 'language' to be one of python, cpp; found 'java'"),
        (gym(cpu_seconds=0), "expected 'cpu_seconds' to be a number from 0.1 to 60"),
        (gym(memory_mib=True), "expected 'memory_mib'"),
        (gym(checker={"kind": "json"}), "expected the checker's 'kind' to be one of exact, "),
        (gym(checker={"kind": "judge", "source": "", "seconds": 1}), "expected a judge to have"),
        (gym(checker={"kind": "judge"}), "expected 'checker.source' to be"),
        ({"input_output": "{"}, "expected 'input_output' to be JSON text"),
        (LIVECODEBENCH | {"private_test_cases": "eJx9kk1P"}, "expected 'private_test_cases' to be JSON text"),
        (LIVECODEBENCH | {"metadata": "{}"}, "expected 'metadata.func_name'"),
        (LIVECODEBENCH | {"public_test_cases": "[]", "private_test_cases": "[]"}, "all 'stdin' or all 'functional'"),
        (HUMAN_EVAL | {"test": None}, "expected 'test' to be"),
        (HUMAN_EVAL | {"entry_point": "a;b"}, "expected 'entry_point'"),
    ],
)
def test_other_rows_are_refused(row, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        parse_row(row)


def mutated(value, rng):
    """`value` with one place changed: dropped, replaced, or its text damaged."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        rest = {name: item for name, item in value.items() if name != key}
        return rest if rng.random() < 0.2 else {**rest, key: mutated(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return [*value[:place], mutated(value[place], rng), *value[place + 1 :]]
    if isinstance(value, str) and rng.random() < 0.6:
        place = rng.randrange(len(value) + 1)
        return value[:place] + rng.choice(("", "\ud800", "[", "}", '"', "9" * 5000, "\0")) + value[place + 1 :]
    return rng.choice((None, 0, -1, True, 1e999, "", [], {}, [[]], {"a": 1}, "[" * 100_000, float("nan")))


def test_mutated_rows_become_a_problem_or_an_error_never_a_crash():
    rng = random.Random(5)
    options = {"language": "python", "checker": {"kind": "tokens", "tolerance": 1e-6}, "cpu_seconds": 1}
    rows = [gym(TESTS, **options), *ROWS]
    counts = {"problem": 0, "error": 0}
    for _ in range(3000):
        row = rng.choice(rows)
        for _ in range(rng.randint(1, 3)):
            row = mutated(row, rng)
        try:
            parse_row(row if isinstance(row, dict) else {})
            counts["problem"] += 1
        except UserError as error:
            assert str(error).startswith("expected ")
            counts["error"] += 1
    assert min(counts.values()) > 200, counts
