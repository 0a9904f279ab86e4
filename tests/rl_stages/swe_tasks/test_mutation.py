import ast

import pytest

from cascade_rl.rl_stages.rewards.swe.repository import installed_package
from cascade_rl.rl_stages.swe_tasks.mutation import mutations
from tests.rl_stages.rewards.swe.tiny_package import SOURCE

CASES = {
    "a <  b": {"a <=  b"},
    "a not  in b": {"a in b"},
    "(a) + (b)": {"(a) - (b)"},
    "'%s' % a": set(),
    "é == (  # why\n b)": {"é != (  # why\n b)"},
    "a and b": {"a or b"},
    "f(a, b)": {"f(b, a)"},
    "f((a), (b))": set(),
    "f(a, *b)": {"f(*b, a)"},
    "[3]": {"[4]"},
    "[True]": set(),
    "f'{a + 1}'": set(),
}


@pytest.mark.parametrize(("expression", "expected"), CASES.items())
def test_one_range_changes(expression, expected):
    source = f"# ünused\ndef g(a, b):\n    x = {expression}\n"
    assert {mutation.apply(source) for mutation in mutations(source)} == {
        f"# ünused\ndef g(a, b):\n    x = {changed}\n" for changed in expected
    }


def test_statements():
    source = "def g(a):\n    while a:\n        h()  # h\n        a.pop()\n    if a:\n        return a\n"
    found = {mutation.kind: mutation.apply(source) for mutation in mutations(source)}
    assert found == {
        "dropped statement": source.replace("()  # h\n        a.pop()", "()"),
        "negated if": source.replace("if a:", "if not (a):"),
        "return None": source.replace("return a", "return None"),
    }


def test_code_outside_functions_and_defaults_stay():
    assert mutations("x = 1 + 2\n\n\ndef g(a: x[3] = 4):\n    pass\n") == []


def test_every_mutant_parses_and_differs_in_its_range_alone():
    for source in (
        SOURCE,
        *(text for path, text in installed_package("catalogue").files.items() if path[-3:] == ".py"),
    ):
        found = mutations(source)
        assert len(found) == len({mutation.apply(source) for mutation in found} - {source})
        for mutation in found:
            mutant = mutation.apply(source)
            ast.parse(mutant)
            assert mutant.startswith(source[: len(source.encode()[: mutation.start].decode())])
            assert mutant.encode().endswith(source.encode()[mutation.end :])
