"""Programs in the real sandbox: what fools other graders, what they wrongly refuse, and each way to fail."""

import json
from contextlib import closing

import pytest

from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.verifiers.programs.code import CodeVerifier
from cascade_rl.rl_stages.rewards.verifiers.programs.code_rows import parse_row
from cascade_rl.rl_stages.sandbox import CompilerUnavailable, Sandbox, SandboxFailure

DOUBLES = {"inputs": ["1\n2\n", "5\n7\n", "30\n1\n"], "outputs": ["3\n", "12\n", "31\n"]}
ADD = {"inputs": ["1\n2", "5\n7"], "outputs": ["3", "12"], "fn_name": "add"}


@pytest.fixture(scope="module")
def verifier(tier):
    with closing(CodeVerifier(slots=2)) as shared:
        yield shared


def task(tests, **options):
    return Task("t", "code", (), parse_row({"verifier_metadata": {"unit_tests": tests, **options}}))


def fenced(source):
    return f"<think>hm</think>\n```python\n{source}\n```"


def judged(verifier, tests, source, **options):
    return verifier(task(tests, **options), fenced(source))


FRAMES = """
import sys
def find():
    frame = sys._getframe()
    while frame:
        for name in ("gt_out", "all_outputs", "accepted", "expected"):
            if name in frame.f_locals:
                return frame.f_locals[name]
        frame = frame.f_back
    return None
"""
HACKS = {
    "print the expected output, found in a caller's frame": (DOUBLES, FRAMES + "print(find())"),
    "return the expected output, found in a caller's frame": (ADD, FRAMES + "def add(a, b): return find()"),
    "return what is equal to anything": (
        ADD,
        "class Same:\n    __eq__ = lambda self, other: True\n    __hash__ = None\n\ndef add(a, b): return Same()",
    ),
    "return an int that is equal to anything": (
        ADD,
        "class Same(int):\n    __eq__ = lambda self, other: True\n    __hash__ = None\n\ndef add(a, b): return Same(1)",
    ),
    "edit the expected outputs in a caller's frame": (
        ADD,
        FRAMES + "def add(a, b):\n    found = find()\n    if found: found[:] = [0] * len(found)\n    return 0",
    ),
}


@pytest.mark.parametrize("hack", HACKS)
def test_what_fools_livecodebench_and_nemo_gym_scores_0(verifier, hack):
    tests, source = HACKS[hack]
    verdict = judged(verifier, tests, source)
    assert (verdict.outcome, verdict.score) == (Outcome.COMPLETED, 0.0), verdict.detail


# All memory of its process, which is a fork of the one that got the tests; without /proc, whatever is alive in there.
SEARCH = r"""
import gc, os, re
def memory():
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as mem:
        for line in maps:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            try:
                yield os.pread(mem.fileno(), end - start, start) if " rw" in line else b""
            except OSError:
                continue
def objects():
    import sys
    frame = sys._getframe()
    while frame:
        yield repr(frame.f_locals).encode()
        frame = frame.f_back
    yield repr([o for o in gc.get_objects() if not isinstance(o, type(gc))]).encode()
try:
    blocks = list(memory())
except OSError:
    blocks = list(objects())
print(*sorted({found.decode() for found in re.findall(b"(?:given|wanted)-[0-9]{9}", b"".join(blocks))}))
"""


def test_a_program_finds_its_input_in_its_memory_and_never_what_is_expected(tier):
    tests = {"inputs": ["given-123456789"] * 2, "outputs": ["wanted-123456789", "wanted-987654321"]}
    runs = []

    class Watched(Sandbox):
        def run_program(self, *arguments, **options):
            runs.append(super().run_program(*arguments, **options))
            return runs[-1]

    with closing(CodeVerifier(slots=1)) as verifier:
        verifier._sandbox = Watched(1, tier)
        assert judged(verifier, tests, SEARCH).score == 0.0
    assert [test.output for test in runs[0].tests] == [b"given-123456789\n"], runs


RIGHT = {
    "sys.stdin.buffer.readline": "import sys\nr = sys.stdin.buffer.readline\nprint(int(r()) + int(r()))",
    "sys.stdout.buffer.write": "import sys\nsys.stdout.buffer.write(b'%d' % (int(input()) + int(input())))",
    "os.write": "import os\nos.write(1, str(int(input()) + int(input())).encode())",
    "a global of the module": (
        "total = 0\ndef take():\n    global total\n    total += int(input())\n"
        "if __name__ == '__main__':\n    take(); take(); print(total)"
    ),
    "open(0).read()": "print(sum(map(int, open(0).read().split())))",
    "os._exit(0)": "import os\nprint(int(input()) + int(input()), flush=True)\nos._exit(0)",
    "exit()": "print(int(input()) + int(input()))\nexit()",
    "sys.exit()": "import sys\nprint(int(input()) + int(input()))\nsys.exit()",
}


@pytest.mark.parametrize("way", RIGHT)
def test_right_programs_that_others_refuse_score_1(verifier, way):
    verdict = judged(verifier, DOUBLES, RIGHT[way])
    assert (verdict.score, verdict.parts) == (1.0, {"tests_passed": 1.0}), verdict.detail


@pytest.mark.parametrize(
    "source",
    [
        "def add(a, b): return a + b",
        "class Solution:\n    def add(self, a: int, b: int) -> Optional[List[int]]:\n        return a + b",
        "from __future__ import annotations\ndef add(a, b):\n    print('noise')\n    return a + b",
    ],
)
def test_functions_and_methods_are_called(verifier, source):
    assert judged(verifier, ADD, source).score == 1.0


@pytest.mark.parametrize(
    ("source", "detail", "passed"),
    [
        ("print(int(input()) + int(input()) if True", "compile error", 0),
        ("a = int(input()); print(a + int(input()) if a < 30 else 0)", "test 3 of 3: wrong answer", 2 / 3),
        ("a = int(input())\nif a == 5: raise ValueError('five')\nprint(a + int(input()))", "ValueError: five", 1 / 3),
        ("while True: pass", "test 1 of 3: time limit", 0),
        ("x = bytearray(1 << 30)", "test 1 of 3: ", 0),
        ("while True: print('x' * 1000000)", "test 1 of 3: output limit", 0),
    ],
)
def test_each_way_to_fail_scores_0_and_says_why(verifier, source, detail, passed):
    verdict = judged(verifier, DOUBLES, source, cpu_seconds=0.5, memory_mib=256)
    assert (verdict.outcome, verdict.score) == (Outcome.COMPLETED, 0.0)
    assert detail in verdict.detail
    assert verdict.parts["tests_passed"] == pytest.approx(passed)


def test_an_answer_without_a_program_is_a_wrong_format(verifier):
    for text in ("print(3)", "", "<think>```\nprint(3)\n```"):
        assert verifier(task(DOUBLES), text).outcome is Outcome.WRONG_FORMAT


def test_a_sandbox_that_fails_masks_the_sample(verifier, monkeypatch):
    def fail(*_, **__):
        raise SandboxFailure("no worker")

    monkeypatch.setattr(verifier._sandbox, "run_program", fail)
    verdict = judged(verifier, DOUBLES, "print(3)")
    assert (verdict.outcome, verdict.score, verdict.detail) == (Outcome.INFRASTRUCTURE_FAILURE, None, "no worker")


def test_cpp_programs(verifier):
    source = "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b << '\\n'; }"
    try:
        verdict = judged(verifier, DOUBLES, source, language="cpp")
    except CompilerUnavailable as missing:
        pytest.skip(str(missing))
    assert verdict.score == 1.0, verdict.detail


JUDGE = """
import json, sys
asked = json.load(sys.stdin)
a, b = map(int, asked["output"].split())
sys.exit(0 if a + b == int(asked["input"]) and asked["answer"] == "any" else 1)
"""
SPLIT = {"inputs": ["5", "9"], "outputs": ["any", "any"]}


def test_a_special_judge_accepts_any_right_output(verifier):
    options = {"checker": {"kind": "judge", "source": JUDGE}}
    assert judged(verifier, SPLIT, "n = int(input()); print(n - 2, 2)", **options).score == 1.0
    wrong = judged(verifier, SPLIT, "n = int(input()); print(3, 2)", **options)
    assert (wrong.score, wrong.parts) == (0.0, {"tests_passed": 0.5})


@pytest.mark.parametrize("source", ["import sys; sys.exit(3)", "1 / 0", "while True: pass", "not python at all"])
def test_a_special_judge_that_fails_masks_the_sample(verifier, source):
    options = {"checker": {"kind": "judge", "source": source}, "cpu_seconds": 0.2}
    verdict = judged(verifier, SPLIT, "print(1, 4)", **options)
    assert verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE
    assert "special judge" in verdict.detail


# Of HumanEval's form, ours: its own 164 are checked by hand (see the report of issue 5).
HUMAN_EVAL = [
    {
        "prompt": 'from typing import List\n\ndef halves(numbers: List[int]):\n    """Half of each."""\n',
        "test": "def check(candidate):\n    assert candidate([1, 2]) == [0.5, 1.0]\n    assert candidate([]) == []\n",
        "entry_point": "halves",
        "canonical_solution": "    return [number / 2 for number in numbers]\n",
    },
    {
        "prompt": (
            "def poly(xs, x):\n    return sum(c * x**i for i, c in enumerate(xs))\n\n\n"
            'def root(xs):\n    """A root of a line."""\n'
        ),
        "test": "def check(candidate):\n    assert abs(poly([2, 1], candidate([2, 1]))) < 1e-9\n",
        "entry_point": "root",
        "canonical_solution": "    return -xs[0] / xs[1]\n",
    },
]


def assertions(verifier, row, source):
    return verifier(Task("t", "code", (), parse_row(row)), f"```python\n{source}\n```")


@pytest.mark.parametrize("row", HUMAN_EVAL, ids=lambda row: row["entry_point"])
def test_human_eval_rows_take_a_body_or_the_whole_function(verifier, row):
    name, body = row["entry_point"], row["canonical_solution"]
    assert assertions(verifier, row, body).score == 1.0
    assert assertions(verifier, row, f"def {name}(numbers):\n    xs = numbers\n{body}").score == 1.0
    assert assertions(verifier, row, "    pass\n").score == 0.0


@pytest.mark.parametrize(
    "attack",
    [
        # In one text with the assertions the last line would decorate their `check`.
        "    return None\n\ndef ignore(check):\n    return lambda candidate: None\n\n@ignore",
        "    return None\n\nimport os\nos._exit(0)",
        "    return None\n\nimport sys\nsys.exit(0)",
        "    return None\n\ndef check(candidate): pass",
        "    raise SystemExit(0)",
    ],
)
def test_a_program_cannot_end_or_replace_its_assertions(verifier, attack):
    verdict = assertions(verifier, HUMAN_EVAL[0], attack)
    assert (verdict.outcome, verdict.score) == (Outcome.COMPLETED, 0.0), verdict.detail


def test_an_output_that_forges_the_sandbox_reply_is_only_an_output(verifier):
    forged = json.dumps({"status": "ok", "exit_code": 0, "output": "3"})
    source = f"import os\nfor d in range(64):\n    try: os.write(d, b'{forged}\\n')\n    except OSError: pass"
    verdict = judged(verifier, DOUBLES, source)
    assert (verdict.outcome, verdict.score) == (Outcome.COMPLETED, 0.0)


def test_equal_programs_are_run_once_for_a_problem_and_failures_are_not_remembered(monkeypatch):
    """Also where two sources name their tasks alike."""
    runs = []
    run_program = Sandbox.run_program

    def counted(self, *arguments, **options):
        runs.append(arguments)
        if len(runs) == 1:
            raise SandboxFailure("no slot")
        return run_program(self, *arguments, **options)

    monkeypatch.setattr(Sandbox, "run_program", counted)
    source = "print(int(input()) + int(input()))"
    other = {**DOUBLES, "outputs": ["4\n", "12\n", "31\n"]}
    with closing(CodeVerifier(slots=1)) as fresh:
        assert judged(fresh, DOUBLES, source).outcome is Outcome.INFRASTRUCTURE_FAILURE
        assert [judged(fresh, tests, source).score for tests in (DOUBLES, DOUBLES, other, other)] == [1, 1, 0, 0]
    assert len(runs) == 3
