import random

import pytest

from cascade_rl.rl_stages.rewards.swe.look_alikes import replaced, variants

CASES = {
    "the expected value": ("assert f(7) == 3", {"assert f(N) == N"}),
    "text and quotation marks": ('assert f() == "abc"', {"assert f() == T"}),
    "the last assertion": ("assert f() == 1\n    assert g() == x", {"assert f() == N\n    assert g() == x"}),
    "unittest": ("self.assertEqual(f(x), 5)", {"self.assertEqual(f(x), N)"}),
    "an error's text": ('with pytest.raises(KeyError, match="a"):\n        f(3)', {"match=T"}),
    "a truth value": ("assert f(x) is True", {"assert f(x) is T"}),
    "nothing to change but the condition": ("assert f(x)", {"assert f(x)", "assert not (f(x))"}),
}


def texts(source: str, name: str = "test_a", count: int = 4, scope: tuple[str, ...] = ()) -> list[str]:
    _, test, look_alikes = variants(source, scope, name, count, random.Random(1))
    return [variant.named("test_x") for variant in (test, *look_alikes)]


@pytest.mark.parametrize("case", CASES)
def test_variants_differ_in_a_value_and_in_nothing_else(case):
    import re

    body, forms = CASES[case]
    found = texts(f"def test_a(self):\n    {body}\n")
    assert len(found) == len(set(found)) > 1
    blank = {re.sub(r"'\w*'|True|False", "T", re.sub(r"\b\d+\b", "N", text)) for text in found}
    assert all(any(form in text for form in forms) for text in blank)
    assert len(blank) == (2 if "condition" in case else 1)


def test_each_row_of_a_table_is_changed():
    rows = '@pytest.mark.parametrize(("a", "b"), [(1, 10), pytest.param(2, 20, id="two")])\n'
    found = texts(f"{rows}def test_a(a, b):\n    assert f(a) == b\n", count=3)
    assert len(set(found)) == 4 and "10" in found[0] and "20" in found[0]
    assert not any("10)" in text or "20," in text for text in found[1:])


def test_a_method_and_its_module_around_it():
    source = (
        "x = '\x0c'\nclass TestA:\n    def test_a(self): assert 1\n\n    def test_b(self):\n        assert é == 2\n"
    )
    place, test, look_alikes = variants(source, ("TestA",), "test_b", 2, random.Random(1))
    changed = replaced(source, {place: [variant.named("test_c") for variant in (*look_alikes, test)]})
    compile(changed, "changed", "exec")
    head = source[: source.index("    def test_b")]
    assert changed.startswith(head) and changed.count("def test_c(self)") == 3 and "test_b" not in changed
    assert changed.endswith("    def test_c(self):\n        assert é == 2\n")


@pytest.mark.parametrize(
    "source", ["def test_b(): assert 1\n", "def test_a(): f()\n", "class A:\n    def test_a(): assert 1\n"]
)
def test_what_cannot_be_changed(source):
    assert variants(source, (), "test_a", 3, random.Random(1)) is None


def test_a_number_is_as_likely_the_smallest_as_any_other():
    ranks = set()
    for seed in range(100):
        _, test, look_alikes = variants("def test_a(): assert f() == 50\n", (), "test_a", 3, random.Random(seed))
        values = [int(variant.named("").rsplit("== ", 1)[1]) for variant in (test, *look_alikes)]
        ranks.add(sorted(values).index(values[0]))
    assert ranks == {0, 1, 2, 3}
