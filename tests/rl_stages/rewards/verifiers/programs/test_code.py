"""Programs in the real sandbox: what fools other graders, what they wrongly refuse, and each way to fail."""

import json
from contextlib import closing

import pytest

from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.verifiers.programs.code import CodeVerifier
from cascade_rl.rl_stages.rewards.verifiers.programs.code_rows import parse_row
from cascade_rl.rl_stages.sandbox import CompilerUnavailable, Sandbox, SandboxFailure
from tests.rl_stages.rewards.verifiers.programs.attacks import ATTACKS

DOUBLES = {"inputs": ["1\n2\n", "5\n7\n", "30\n1\n"], "outputs": ["3\n", "12\n", "31\n"]}
ADD = {"inputs": ["1\n2", "5\n7"], "outputs": ["3", "12"], "fn_name": "add"}


@pytest.fixture(scope="module")
def verifier(tier):
    with closing(CodeVerifier(slots=2)) as shared:
        yield shared


@pytest.fixture(scope="module")
def one_tier():
    """For what is the same in all: how answers are read, called and compared."""
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
    "print every answer": (DOUBLES, "for n in range(100): print(n)"),
    "exit before the answer": (DOUBLES, "import os\nos._exit(0)"),
    "exit before the result": (ADD, "def add(a, b): raise SystemExit(0)"),
    "return a text that is equal to anything": (
        ADD,
        "class Same(str):\n    __eq__ = lambda self, other: True\n    __hash__ = str.__hash__\n\n"
        "def add(a, b): return Same()",
    ),
    "return a float that is equal to anything": (
        ADD,
        "class Same(float):\n    __eq__ = lambda self, other: True\n    as_integer_ratio = lambda self: (3, 1)\n"
        "    __hash__ = None\n\ndef add(a, b): return Same(0)",
    ),
    "return a list that is equal to anything": (
        ADD,
        "class Same(list):\n    __eq__ = lambda self, other: True\n    __hash__ = None\n\ndef add(a, b): return Same()",
    ),
    "replace what writes and compares": (
        ADD,
        "import builtins, json, os\njson.dumps = lambda *a, **k: 'true'\nbuiltins.isinstance = lambda *a: True\n"
        "def add(a, b): return 0",
    ),
    "write to every descriptor": (
        ADD,
        "import os\ndef add(a, b):\n    for d in range(256):\n        try: os.write(d, b'3\\n12\\n')\n"
        "        except OSError: pass\n    os._exit(0)",
    ),
    "go on in a thread": (
        ADD,
        "import os, threading, time\ndef go():\n    for d in range(256):\n        try: os.write(d, b'3')\n"
        "        except OSError: pass\ndef add(a, b):\n    threading.Timer(0.05, go).start()\n    return 0",
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
    "a standard output of its own, written at exit": (
        "import atexit, io, sys\nsys.stdout = io.StringIO()\n"
        "atexit.register(lambda: sys.__stdout__.write(sys.stdout.getvalue()))\n"
        "print(int(input()) + int(input()))\nexit()"
    ),
    "a standard output that it closes": "import sys\nprint(int(input()) + int(input()))\nsys.stdout.close()",
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
        "@cache\ndef add(a: int, b: int) -> int: return a + b",
        "@lru_cache(maxsize=None)\ndef add(a: int, b: int): return a + b",
        "class Solution:\n    @cache\n    def add(self, a: int, b: int): return a + b",
        "class Solution:\n    @staticmethod\n    def add(a: int, b: int): return a + b",
        "class Add:\n    __annotations__ = {'a': int}\n    def __call__(self, a, b): return a + b\nadd = Add()",
        "add = partial(lambda c, a, b: a + b + c, 0)",
        "from operator import *\nclass Solution:\n    def add(self, a, b): return a + b",
    ],
)
def test_functions_and_methods_are_called(one_tier, source):
    verdict = judged(one_tier, ADD, source)
    assert verdict.score == 1.0, verdict.detail


def test_a_function_that_only_its_graders_names_have_is_not_the_programs(one_tier):
    """`gcd` comes with the names that a program may use."""
    tests = {"inputs": ["4\n6"], "outputs": ["2"], "fn_name": "gcd"}
    assert judged(one_tier, tests, "lcm(2, 3)").score == 0.0
    assert judged(one_tier, tests, "from math import gcd").score == 1.0


NODES = {"inputs": ["[[1, 4], [2], []]"], "outputs": ["[[1, 4], [2], []]"], "fn_name": "f"}
# what is returned for 3, what is expected, score
RETURNED = {
    "a tuple": ("(1, (2, 3))", "[1, [2, 3]]", 1.0),
    "a set": ("{2, 1}", "[1, 2]", 1.0),
    "a generator": ("(i for i in range(n))", "[0, 1, 2]", 1.0),
    "a fraction": ("__import__('fractions').Fraction(n, 2)", "1.5", 1.0),
    "a whole decimal": ("__import__('decimal').Decimal('3.0')", "3", 1.0),
    "a float": ("3.0", "3", 1.0),
    "a truth value": ("n == 3", "1", 1.0),
    "a number for a truth value": ("n // 3", "true", 1.0),
    "keys that are numbers": ("{1: [n]}", '{"1": [3]}', 1.0),
    "other order of keys": ("{'b': 1, 'a': 2}", '{"a": 2, "b": 1}', 1.0),
    "nothing": ("None", "[]", 0.0),
    "the wrong truth value": ("True", "0", 0.0),
    "a text": ("'3'", "3", 0.0),
    "a longer list": ("[3, None]", "[3]", 0.0),
}


@pytest.mark.parametrize("what", RETURNED)
def test_equal_values_of_other_types_are_equal(one_tier, what):
    returned, expected, score = RETURNED[what]
    tests = {"inputs": ["3"], "outputs": [expected], "fn_name": "f"}
    verdict = judged(one_tier, tests, f"def f(n): return {returned}")
    assert verdict.score == score, verdict.detail


def test_lists_and_trees_without_a_node_are_written_as_empty_lists(one_tier):
    same = "class Solution:\n    def f(self, x: {0}) -> {0}: return x"
    empty = {"inputs": ["[]"], "outputs": ["[]"], "fn_name": "f"}
    for kind in ("Optional[ListNode]", "Optional[TreeNode]", "ListNode"):
        assert judged(one_tier, empty, same.format(kind)).score == 1.0
    assert judged(one_tier, NODES, same.format("List[Optional[ListNode]]")).score == 1.0


DEEP = "import sys\nsys.setrecursionlimit(10**6)\n"
# how each of these goes deeper than an interpreter's own count of calls through C, at 10,000 calls
RECURSIONS = {
    "a plain function": "def f(n): return n and 1 + f(n - 1)",
    "a cached function": "@cache\ndef f(n): return n and 1 + f(n - 1)",
    "a bounded cache": "@lru_cache(100)\ndef f(n): return n and 1 + f(n - 1)",
    "a cached method": "class A:\n    @cache\n    def f(self, n): return n and 1 + self.f(n - 1)\nf = A().f",
    "objects within objects": "class A:\n    def __init__(s, n): A(n - 1) if n else None\ndef f(n): return A(n) and n",
    "a maximum": "def f(n): return n and 1 + max(f(n - 1) for _ in range(1))",
    "a sum": "def f(n): return n and 1 + sum(map(f, [n - 1]))",
    "an operator": "class A(int):\n    def __neg__(self): return self and 1 + -A(self - 1)\ndef f(n): return -A(n)",
    "a thread with a stack of its own": (
        "import threading\n@cache\ndef g(n): return n and 1 + g(n - 1)\ndef f(n):\n    threading.stack_size(1 << 26)\n"
        "    found = []\n    t = threading.Thread(target=lambda: found.append(g(n)))\n    t.start(); t.join()\n"
        "    return found[0]"
    ),
}


@pytest.mark.parametrize("way", RECURSIONS)
def test_recursion_is_as_deep_as_the_stack(verifier, way):
    """python/cpython#112215: in 3.12 a cached function ends at depth 496, whatever the recursion limit."""
    verdict = judged(
        verifier, {"inputs": ["10000"], "outputs": ["10000"]}, f"{RECURSIONS[way]}\nprint(f(int(input())))"
    )
    assert verdict.score == 1.0, verdict.detail


def test_recursion_without_an_end_is_an_error_of_the_program(verifier):
    for source in ("def f(n): return f(n + 1)\nf(0)", DEEP + "@cache\ndef f(n): return f(n + 1)\nf(0)"):
        verdict = judged(verifier, DOUBLES, source)
        assert verdict.score == 0.0 and "runtime error" in verdict.detail


@pytest.mark.parametrize(
    "source",
    [
        "print(len(deque([sqrt(4), gcd(4, 6)])) + comb(3, 1) - 2)",
        "print(json.loads(input()) + statistics.median([0, 0]))",
        "a = [3]\nb = copy.deepcopy(a); heappush(b, 1)\nprint(heappop(b) + 2)",
        "def f() -> List[int]: return [datetime.date(2020, 1, 3).day]\nprint(*f())",
        "print(pow(3, 1, 5))",  # of the builtins, and not of math
        "from __future__ import annotations\nprint(reduce(operator.add, [1, 2]))",
        "print(stdin.readline().strip())",
    ],
)
def test_the_graders_names_need_no_import(one_tier, source):
    """LiveCodeBench's and NeMo-Gym's testing_util.py put them before each program (allenai/olmo-eval#354)."""
    verdict = judged(one_tier, {"inputs": ["3"], "outputs": ["3"]}, source)
    assert verdict.score == 1.0, verdict.detail


def test_integers_of_any_length_are_read_and_printed(one_tier):
    tests = {"inputs": ["9" * 5000], "outputs": ["1" + "0" * 5000]}
    assert judged(one_tier, tests, "print(int(input()) + 1)").score == 1.0
    assert judged(one_tier, tests | {"fn_name": "f"}, "def f(n): return n + 1").score == 1.0
    assert judged(one_tier, tests | {"fn_name": "f"}, "def f(n): return n + 2").score == 0.0


def test_outputs_above_the_usual_limit_are_compared(one_tier):
    tests = {"inputs": ["300000"], "outputs": ["12345 " * 300000]}
    assert judged(one_tier, tests, "print('12345 ' * int(input()))").score == 1.0
    assert judged(one_tier, tests, "print('12345 ' * int(input()) + '1')").score == 0.0


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


def test_an_answer_without_a_program_is_a_wrong_format(one_tier):
    for text in ("print(3)", "", "<think>```\nprint(3)\n```"):
        assert one_tier(task(DOUBLES), text).outcome is Outcome.WRONG_FORMAT


def test_a_sandbox_that_fails_masks_the_sample(one_tier, monkeypatch):
    def fail(*_, **__):
        raise SandboxFailure("no worker")

    monkeypatch.setattr(one_tier._sandbox, "run_program", fail)
    verdict = judged(one_tier, DOUBLES, "print(3)")
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


def test_a_special_judge_accepts_any_right_output(one_tier):
    options = {"checker": {"kind": "judge", "source": JUDGE}}
    assert judged(one_tier, SPLIT, "n = int(input()); print(n - 2, 2)", **options).score == 1.0
    wrong = judged(one_tier, SPLIT, "n = int(input()); print(3, 2)", **options)
    assert (wrong.score, wrong.parts) == (0.0, {"tests_passed": 0.5})


@pytest.mark.parametrize("source", ["import sys; sys.exit(3)", "1 / 0", "while True: pass", "not python at all"])
def test_a_special_judge_that_fails_masks_the_sample(one_tier, source):
    options = {"checker": {"kind": "judge", "source": source}, "cpu_seconds": 0.2}
    verdict = judged(one_tier, SPLIT, "print(1, 4)", **options)
    assert verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE
    assert "special judge" in verdict.detail


@pytest.mark.parametrize("output", ["'x'", "'9' * 5000", "'1 ' * 9", "chr(0xd7ff)"])
def test_an_output_at_which_a_special_judge_fails_is_wrong(one_tier, output):
    options = {"checker": {"kind": "judge", "source": JUDGE}}
    assert judged(one_tier, SPLIT, "print(0, 0)", **options).score == 0.0  # the judge can judge
    verdict = judged(one_tier, SPLIT, f"print({output})", **options)
    assert (verdict.score, verdict.parts) == (0.0, {"tests_passed": 0.0})


def test_so_it_is_where_the_judge_has_a_verdict_on_the_accepted_answer(one_tier):
    options = {"checker": {"kind": "judge", "source": JUDGE.replace("any", "1 4")}}
    assert judged(one_tier, {"inputs": ["5"], "outputs": ["1 4"]}, "print('x')", **options).score == 0.0


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
def test_human_eval_rows_take_a_body_or_the_whole_function(one_tier, row):
    name, body = row["entry_point"], row["canonical_solution"]
    assert assertions(one_tier, row, body).score == 1.0
    whole = f"def {name}(numbers):\n    xs = numbers\n{body}"
    assert assertions(one_tier, row, whole).score == 1.0
    assert assertions(one_tier, row, f"from __future__ import (\n    annotations,\n)\n{whole}").score == 1.0
    assert assertions(one_tier, row, "    pass\n").score == 0.0
    bare = row | {"prompt": row["prompt"].partition('    """')[0]}  # a function without a body
    assert assertions(one_tier, bare, whole).score == 1.0


def asserts(*lines):
    body = "".join(f"    {line}\n" for line in lines)
    return {"prompt": "def f(*x, **k):\n", "test": f"def check(candidate):\n{body}", "entry_point": "f"}


# what is asserted, a body of which it holds, one of which it does not
ASSERTED = {
    "types": ("candidate(1) == (1, [2]) and candidate(1) != [1, [2]]", "return 1, [2]", "return [1, [2]]"),
    "a set": ("candidate(1) == {(1, 2), 3}", "return {(1, 2), 3}", "return [(1, 2), 3]"),
    "a dict": ("candidate({1: {2}}) == {1: {2}, (3,): None}", "return {**x[0], (3,): None}", "return {'1': {2}}"),
    "bytes": ("candidate(b'a') == b'ab'", "return x[0] + b'b'", "return 'ab'"),
    "a complex number": ("candidate(1j) == -1", "return x[0] ** 2", "return 1j"),
    "a fraction": ("candidate(1) == 0.5", "import fractions; return fractions.Fraction(1, 2)", "return '0.5'"),
    "infinity": ("candidate(1e999) == float('inf')", "return x[0]", "return -x[0]"),
    "a generator": ("list(candidate(2)) == [0, 1]", "return (i for i in range(2))", "return (i for i in 'a')"),
    "a name": ("candidate(b=2) == {'b': 2}", "return k", "return x"),
    "a rounded result": ("abs(candidate(3) - 1.5) < 1e-9", "return 1.5", "return 2"),
    "a call of the function's name": ("f(2) == 2", "return x[0]", "return None"),
    "a call of a result": ("candidate(candidate(2)) == 8", "return x[0] + 3", "return x[0]"),
    "a subclass": ("candidate(1) == 'a'", "return type('S', (str,), {})('a')", "return type('S', (str,), {})('b')"),
}


@pytest.mark.parametrize("what", ASSERTED)
def test_values_of_every_type_pass_between_program_and_assertions(one_tier, what):
    asserted, right, wrong = ASSERTED[what]
    row = asserts(f"assert {asserted}")
    verdict = assertions(one_tier, row, f"    {right}")
    assert verdict.score == 1.0, verdict.detail
    assert assertions(one_tier, row, f"    {wrong}").score == 0.0


def test_assertions_see_exceptions_and_what_a_function_does_to_its_arguments(one_tier):
    raises = asserts("try: candidate(1)", "except ValueError as e: assert str(e) == 'one'", "else: assert False")
    assert assertions(one_tier, raises, "    raise ValueError('one')").score == 1.0
    assert assertions(one_tier, raises, "    raise TypeError('one')").score == 0.0
    changes = asserts("a, b = [2, 1], {1}", "candidate(a, b)", "assert (a, b) == ([1, 2], {1, 3})")
    assert assertions(one_tier, changes, "    x[0].sort(); x[1].add(3)").score == 1.0
    assert assertions(one_tier, changes, "    x[1].add(3)").score == 0.0


ATTACKED = asserts("assert candidate(3) == 6", "assert candidate('a') == 'aa'")


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_program_cannot_buy_what_its_assertions_decide(verifier, attack):
    verdict = assertions(verifier, ATTACKED, ATTACKS[attack])
    assert (verdict.outcome, verdict.score) == (Outcome.COMPLETED, 0.0), verdict.detail


def test_a_function_cannot_change_what_it_is_compared_with(one_tier):
    row = asserts("a = [2, 1]", "assert candidate(a) == sorted(a)")
    assert assertions(one_tier, row, "    x[0].clear(); return []").score == 0.0
    assert assertions(one_tier, row, "    x[0].sort(); return x[0]").score == 1.0


def test_results_that_end_a_loop_early_end_no_assertion(one_tier):
    row = asserts("assert all(map(lambda n: candidate(n) == n, [1, 2]))", "assert list(map(candidate, [1])) == []")
    assert assertions(one_tier, row, "    raise StopIteration").score == 0.0


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
