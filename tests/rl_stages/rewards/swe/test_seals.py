import pytest

from cascade_rl.rl_stages.rewards.swe import seals
from cascade_rl.rl_stages.rewards.swe.seals import expected, own_name, sealed

HEAD = '@pytest.mark.parametrize(("x", "y"), [(1, 10), pytest.param(2, "é", id="two"), (3, [4])])\n'
CASES = {
    "the value": ("assert f(7) == 3", "assert f(7) == S", ["3"]),
    "on the left": ("assert -3 == f(7)", "assert S == f(7)", ["-3"]),
    "a whole list": ("assert f() == [1, {'a': (2.0,)}]", "assert f() == S", ["[1, {'a': (2)}]"]),
    "two": ("assert f() == 1 and g(x) == 'é'", "assert f() == S and g(x) == S", ["1", "'é'"]),
    "a variable": ("want = [1]\n    assert f() == want", "want = S\n    assert f() == want", ["[1]"]),
    "a sum": ("n = 0\n    n += f()\n    assert n == m", "n = 0\n    n += f()\n    assert S == bool(n == m)", ["1"]),
    "two variables": ("a = 1\n    b = 1\n    assert a == b", "a = 1\n    b = 1\n    assert S == bool(a == b)", ["1"]),
    "unittest": ("self.assertEqual(f(x), 5)", "self.assertEqual(f(x), S)", ["5"]),
    "a truth value": ("assert f({}) > 1, 'why'", "assert S == bool(f({}) > 1), 'why'", ["1"]),
    "each part": ("assert (f(x) and\n    not y)", "assert (S == bool(f(x)) and\n    S == bool(not y))", ["1", "1"]),
    "beside a value": ("assert f() == 3 and y", "assert f() == S and S == bool(y)", ["3", "1"]),
    "no literal": ("assert f(x) == g(x)", "assert S == bool(f(x) == g(x))", ["1"]),
    "a method of unittest": ("self.assertIn((x), y, 'why')", "S == bool(x in y)", ["1"]),
    "what it may not be": ("self.assertFalse(f(x) or y)", "S == bool(not (f(x) or y))", ["1"]),
    "a method with a value": ("self.assertTrue(f() == 3)", "self.assertTrue(f() == S)", ["3"]),
    "a method with all that it gets": ("self.assertIn(*x)", "self.assertIn(*x)", []),
    "an error": ("with pytest.raises(KeyError, match='x'): f()", "with pytest.raises(E, match='x'): f()", ["KeyError"]),
    "an error of unittest": ("self.assertRaises(OSError, f, x)", "self.assertRaises(E, f, x)", ["OSError"]),
    "an error that is anybody's": ("with raises(Exception): f()", "with raises(Exception): f()", []),
    "an error of the package": ("with raises(OwnError): f()", "with raises(OwnError): f()", []),
    "nothing": ("f(3)", "f(3)", []),
}


def seal(source: str, name: str = "test_a") -> tuple[str, list[str]]:
    found = expected(source, [name])
    text = sealed(source, dict(enumerate(found)))
    for number in range(len(found)):
        text = text.replace(f"sealed_value({number})", "S").replace(f"sealed_error({number})", "E")
    return text, [each.form for each in found]


@pytest.mark.parametrize("case", CASES)
def test_what_an_assertion_expects_is_sealed_and_nothing_else(case):
    body, changed, forms = CASES[case]
    text, found = seal(f"import x\ndef test_a(self):\n    {body}\n\ndef test_b():\n    assert f() == 3\n")
    assert text == f"import x\ndef test_a(self):\n    {changed}\n\ndef test_b():\n    assert f() == 3\n"
    assert sorted(found) == sorted(forms)


def test_what_a_row_expects_is_sealed_where_pytest_names_the_test_by_it():
    text, forms = seal(f"{HEAD}def test_a(x, y):\n    assert f(x) == y\n")
    assert '[(1, S), pytest.param(2, S, id="two"), (3, [4])]' in text and forms == ["10", "'é'"]
    one, _ = seal("@mark.parametrize('y', (1, 'b'))\ndef test_a(y):\n    assert y == f()\n")
    assert "('y', (S, S))" in one


HELPERS = """
def check(given, wanted, *, note=None): assert f(given) == wanted, note
def same(a, b): assert a == b
class Base:
    def check_both(self, given, wanted):
        self.assertEqual(f(given), wanted)
def twice(a): assert f() == a
class Other:
    def twice(self, a): return a
"""


@pytest.mark.parametrize(
    ("body", "changed", "forms"),
    [
        ("check(3, 'x', note=1)", "check(3, S, note=1)", ["'x'"]),
        ("check(wanted=[4], given=2)", "check(wanted=S, given=2)", ["[4]"]),
        ("check(3, *x, 4)", "check(3, *x, 4)", []),
        ("same(f(2), 5)", "same(f(2), S)", ["5"]),
        ("self.check_both(1, 2)", "self.check_both(1, S)", ["2"]),
        ("want = {'a': 1}\n    check(3, want)", "want = S\n    check(3, want)", ["{'a': 1}"]),
        ("twice(3)", "twice(3)", []),
        ("unknown(3)", "unknown(3)", []),
    ],
    ids=["by place", "by name", "of unknown place", "either side", "a method", "a variable", "of two", "elsewhere"],
)
def test_what_a_helper_compares_is_sealed_where_a_test_gives_it(body, changed, forms):
    text, found = seal(f"{HELPERS}\ndef test_a(self):\n    {body}\n")
    assert text == f"{HELPERS}\ndef test_a(self):\n    {changed}\n" and found == forms


def test_a_row_that_goes_to_a_helper():
    text, forms = seal(f"{HELPERS}\n{HEAD}def test_a(x, y): check(x, y)\n")
    assert "[(1, S), pytest.param(2, S" in text and forms == ["10", "'é'"]


def test_a_test_gets_its_own_name_back():
    found = dict(enumerate(expected(f"{HEAD}def test_a(x, y):\n    assert f(x) == y\n", ["test_a"])))
    parameters = {number: each.parameter for number, each in found.items()}
    assert own_name("t.py::test_a[1-sealed-0.]", parameters) == "t.py::test_a[1-10]"
    assert own_name("t.py::test_a[2-sealed-1.]", parameters) == r"t.py::test_a[2-\xe9]"
    assert own_name("t.py::test_a[sealed-7.]", parameters) == "t.py::test_a[sealed-7.]"


def test_a_method_and_the_last_definition():
    source = "x = '\x0c'\nclass TestA:\n    def test_a(self): assert x == 1\n    def test_a(self): assert 'é' == x\n"
    text, forms = seal(source, "TestA::test_a")
    assert text == source.replace("'é' == x", "S == x") and forms == ["'é'"]
    assert seal(source, "test_a") == (source, [])


@pytest.mark.parametrize(
    ("truth", "opposite"),
    {
        "f(x)": "not f(x)",
        "not (f(x))": "f(x)",
        "x in (y or z)": "x not in (y or z)",
        "(x or y) is not None": "(x or y) is None",
        "a < b": "not a < b",
        "a or b": "not (a or b)",
    }.items(),
)
def test_by_chance_a_box_sees_the_opposite_of_a_truth(truth, opposite, monkeypatch):
    (found,) = expected(f"def test_a(): assert {truth}", ["test_a"])
    texts = []
    for coin in (0, 1):
        monkeypatch.setattr(seals, "randbits", lambda _, coin=coin: coin)
        texts.append((found.drawn().text, found.drawn().form))
    assert texts[1] == (f"{{}} == bool({opposite})", "0")
    (other,) = expected(f"def test_a(): assert {opposite}", ["test_a"])
    assert texts[0] == (other.opposite, "1")  # nothing tells which of both the test has


def test_an_error_is_right_if_all_that_was_caught_derives_from_it():
    (found,) = expected("def test_a(): raises(LookupError)", ["test_a"])
    for caught, right in (({"KeyError"}, True), (set(), False), ({"KeyError", "OSError"}, False), ({"print"}, False)):
        assert found.is_right(caught) is right, caught
