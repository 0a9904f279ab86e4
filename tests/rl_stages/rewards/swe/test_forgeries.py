"""Patches that repair nothing. Those of FORGERIES make the tests' process report that every test passes."""

import pytest

from cascade_rl.rl_stages.rewards.swe.grading import _known, grade, hides_a_value, run_tests
from cascade_rl.rl_stages.rewards.swe.instance import Instance
from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff
from tests.rl_stages.rewards.swe.tiny_package import REPOSITORY, SOURCE

PATH = "tiny/lists.py"
BUGGY = SOURCE.replace("value > best", "value < best")
FAILING = tuple(f"tests/test_lists.py::test_largest[{row}]" for row in ("values0-1", "values2--1", "values3-1"))

# The runner's own variables.
FIND = """
import sys
frame = sys._getframe()
while frame and "request" not in frame.f_locals:
    frame = frame.f_back
request, recorder, channel = (frame.f_locals[name] for name in ("request", "outcomes", "channel"))
canaries = request["files"][0], request["files"][-1]
"""
PYTEST = """
import importlib
python, runner = (importlib.import_module("_pytest" + name) for name in (".python", ".runner"))
run = python.Function.runtest
"""
PASSED = """
class Passed(dict):
    def __setitem__(self, key, value):
        dict.__setitem__(self, key, value if len(key.partition("::")[0]) == 24 else ("passed", ""))
"""
FORGERIES = {
    "wraps the outcomes that it finds by frames": f"{FIND}{PASSED}recorder.of = Passed(recorder.of)\n",
    "wraps the outcomes that it finds among all objects": f"""{PASSED}
for kept in __import__("g" + "c").get_objects():
    if type(kept).__name__ == "Outcomes":
        kept.of = Passed(kept.of)
""",
    "writes the outcomes itself and exits": f"""{FIND}{PYTEST}
import json, os
def write(first):
    known = {{item.nodeid: ("passed", "") for item in first.session.items}}
    for path in canaries:
        tests = [name for name in known if name.startswith(path)]
        with open(path) as file:
            text = file.read()
        known[tests[text.index("3 == 4") > text.index("3 == 3")]] = ("failed", "")
    report = {{"outcomes": known, "seen": {{}}}}
    os.write(channel, f"\\n{{request['nonce']}} {{json.dumps(report)}}\\n".encode())
    os._exit(0)
python.Function.runtest = write
""",
    "runs only tests with a canary's name": f"""{PYTEST}
python.Function.runtest = lambda self: run(self) if len(self.path.stem) == 21 else None
""",
    "runs only tests with a canary's form": f"""{PYTEST}
python.Function.runtest = lambda self: run(self) if "3 == 4" in self.path.read_text() else None
""",
    "forgets what a test raised": f"""{PYTEST}
was = runner.CallInfo.from_call.__func__
def from_call(cls, func, when, reraise=None):
    call = was(cls, func, when, reraise)
    if call.excinfo and "3 == 4" not in str(call.excinfo.traceback[-1].statement):
        call.excinfo = None
    return call
runner.CallInfo.from_call = classmethod(from_call)
""",
    "empties the tests": f"""{PYTEST}
set_up = python.Function.setup
def emptied(self):
    set_up(self)
    if len(self.path.stem) != 21:
        self.obj = lambda **_: None
python.Function.setup = emptied
""",
    "compares each seal with all that it finds in the tests": f"""{PYTEST}
import ast, builtins
set_up = python.Function.setup
def guess(self):
    set_up(self)
    for node in ast.walk(ast.parse(self.path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "sealed_value":
            for value in (0, 1, -1, 2):
                builtins.sealed_value(node.args[0].value) == value
python.Function.setup = guess
""",
    "says that each seal saw the most frequent value": f"""{FIND}{PASSED}
recorder.of, seen = Passed(recorder.of), frame.f_locals["seen"]
class Same(set):
    def add(self, _): super().add("1")
for number in range(9): seen[number] = Same()
""",
    "is equal to anything": """
class Equal(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def largest(values, start=0): return Equal()
""",
    "returns what its caller expects": """
import sys
def largest(values, start=0): return sys._getframe(1).f_locals["place"]
""",
}
MALFORMED = (
    b'{"outcomes": ',
    b'{"outcomes": {"a": 1}, "seen": {}}',
    b'{"outcomes": [], "seen": 3}',
    b'{"outcomes": {}, "seen": {"b": []}}',
    b'{"a":' * 9000,
)
OTHER_ATTACKS = {
    **{
        f"a report that is none: {report[:30]!r}": f"""{FIND}
import os
os.write(channel, b"\\n" + request["nonce"].encode() + b" " + {report!r} + b"\\n")
os._exit(0)
"""
        for report in MALFORMED
    },
    "writes to every descriptor": f"""{FIND}
import json, os
for descriptor in range(1, 16):
    try:
        report = json.dumps({{"outcomes": recorder.of, "seen": {{}}}})
        os.write(descriptor, f"\\n{{request['nonce']}} {{report}}\\n".encode())
    except OSError:
        pass
""",
    "another pytest": """
import sys, types
for name in [name for name in sys.modules if name.startswith(("pytest", "_pytest"))]:
    sys.modules[name] = types.ModuleType(name)
""",
    "another AssertionError": "import builtins\nbuiltins.AssertionError = type('Silent', (Exception,), {})\n",
    "configuration written while it runs": """
import pathlib
hook = "def pytest_runtest_makereport(item, call): call.excinfo = None"
for name in ("conftest.py", "tests/conftest.py", "sitecustomize.py", "usercustomize.py"):
    pathlib.Path(name).write_text(hook)
pathlib.Path("pytest.ini").write_text("[pytest]\\naddopts = --collect-only\\n")
pathlib.Path("setup.cfg").write_text("[tool:pytest]\\npython_functions = none\\n")
pathlib.Path("x.pth").write_text("import conftest")
""",
    "tests written anew": """
import pathlib
for path in pathlib.Path().rglob("test_*.py"):
    path.write_text(path.read_text().replace("assert ", "assert True or "))
""",
    "an early exit": "import os\nos._exit(0)\n",
    "an exit at the end": "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)\n",
    "the runner killed": "import os\nos.kill(os.getppid(), 9)\nos.kill(os.getpid(), 9)\n",
    "two processes": "import os\nos.fork()\n",
    "a child that goes on alone": "import os\nif os.fork(): os._exit(0)\n",
    "a program in its place": "import os\nos.execv('/bin/true', ['true'])\n",
}


@pytest.fixture(scope="module")
def instance(sandbox) -> Instance:
    run = run_tests(REPOSITORY, sandbox)
    passing = tuple(test for test in run.outcomes if run.passed(test))
    diff = unified_diff({PATH: BUGGY}, {PATH: SOURCE})
    return Instance("tiny", "it is wrong", REPOSITORY.changed({PATH: BUGGY}), diff, passing, (), FAILING)


@pytest.mark.parametrize("attack", [*FORGERIES, *OTHER_ATTACKS])
def test_an_attack_scores_0(attack, instance, sandbox):
    patch = {PATH: BUGGY + (FORGERIES | OTHER_ATTACKS)[attack]}
    verdict = grade(instance, patch, sandbox)
    assert verdict.score == 0.0, verdict


@pytest.mark.parametrize("forgery", [name for name in FORGERIES if "seal" not in name])
def test_a_forgery_would_pay_without_seals(forgery, instance, sandbox):
    run = run_tests(instance.repository.changed({PATH: BUGGY + FORGERIES[forgery]}), sandbox)
    assert all(run.passed(test) for test in instance.must_pass), run


def test_a_repair_that_looks_like_an_attack_scores_1(instance, sandbox):
    assert grade(instance, {PATH: SOURCE + PYTEST + "\nimport sys\n"}, sandbox).score == 1.0


# Tests that compare nothing with a value.
TRUTHS = "\n".join(f"    assert has([{n}, 1], {n}) and not has([{n}], {n + 1})" for n in range(12))
VALUELESS = f"""import unittest
import pytest
from tiny.lists import has, mean

def test_has():
{TRUTHS}

def test_mean():
    with pytest.raises(ZeroDivisionError, match="zero"):
        mean([])

class TestHas(unittest.TestCase):
    def test_has(self):
        self.assertTrue(has([1], 1))
        self.assertFalse(has([1], 2))
        self.assertRaises(TypeError, has, 1, 2)
"""
RIGHT = SOURCE.replace("return wanted in values", "return any(value == wanted for value in values)")
WRONG = SOURCE.replace("return wanted in values", "return not values").replace(
    "return sum(values) / len(values)", "return sum(values) / max(1, len(values))"
)
NOTE = f"""{FIND}{PASSED}
recorder.of, seen = Passed(recorder.of), frame.f_locals["seen"]
class Same(set):
    def add(self, _): super().add("VALUE")
for number in range(99): seen[number] = Same(["VALUE"])
"""
PRETENDERS = {
    "passes, and notes True": NOTE.replace("VALUE", "1"),
    "passes, and notes what it sees": f"{FIND}{PASSED}recorder.of = Passed(recorder.of)\n",
    "passes, and notes the opposite of what it sees": f"""{FIND}{PASSED}
recorder.of, seen = Passed(recorder.of), frame.f_locals["seen"]
class Turned(set):
    def add(self, form): super().add({{"0": "1", "1": "0"}}.get(form, form))
for number in range(99): seen[number] = Turned()
""",
}


@pytest.fixture(scope="module")
def valueless(sandbox) -> Instance:
    repository = REPOSITORY.changed({PATH: SOURCE}).with_other({"tests/test_truths.py": VALUELESS})
    run = run_tests(repository, sandbox)
    failing = tuple(test for test in run.outcomes if run.passed(test) and "test_truths.py" in test)
    assert len(failing) == 3, run
    diff = unified_diff({PATH: WRONG}, {PATH: SOURCE})
    return Instance("truths", "it is wrong", repository.changed({PATH: WRONG}), diff, failing, (), failing)


@pytest.mark.parametrize("pretender", PRETENDERS)
def test_who_only_guesses_truths_and_errors_scores_0(pretender, valueless, sandbox):
    verdict = grade(valueless, {PATH: WRONG + PRETENDERS[pretender]}, sandbox)
    assert verdict.score == 0.0, verdict


def test_repairs_of_truths_and_errors_score_1(valueless, sandbox):
    assert [grade(valueless, {PATH: text}, sandbox).score for text in (SOURCE, RIGHT)] == [1.0, 1.0]
    assert not hides_a_value(valueless, sandbox)
    assert len(_known(valueless, sandbox).exam.seals) == 28  # all of them
