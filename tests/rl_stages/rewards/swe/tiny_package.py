"""A package of our own whose tests notice nearly every mutation."""

from cascade_rl.rl_stages.rewards.swe.repository import Repository

SOURCE = '''"""Small functions on lists."""


def largest(values, start=0):
    best = start
    place = -1
    for index, value in enumerate(values):  # a comment that mutation must keep
        if value > best:
            best = value
            place = index
    return place


def window(values, first, last):
    if first < 0 or last > 3:
        return []
    return values[first:last]


def mean(values):
    return sum(values) / len(values)


def between(value, low, high):
    return low <= value and value < high


def count(values, wanted):
    found = 0
    for value in values:
        if value == wanted:
            found = found + 1
    return found


def clamp(value, low, high):
    return max(low, min(value, high))


def power(base, exponent):
    result = 1
    for _ in range(exponent):
        result = result * base
    return result


def has(values, wanted):
    return wanted in values
'''
TESTS = """import pytest

from tiny.lists import between, clamp, count, has, largest, mean, power, window


@pytest.mark.parametrize(("values", "place"), [([1, 3, 2], 1), ([], -1), ([0, -1], -1), ([0, 5, 5], 1)])
def test_largest(values, place):
    assert largest(values) == place


def test_window():
    assert window([1, 2, 3, 4], 1, 3) == [2, 3]
    assert window([1, 2], -1, 2) == [] and window([1, 2, 3, 4], 0, 4) == []
    assert window([1, 2], 0, 1) == [1] and window([1, 2], 1, 0) == []


def test_mean():
    assert mean([2, 4]) == 3


def test_between():
    assert between(1, 1, 3) and between(2, 1, 3) and not between(3, 1, 3) and not between(0, 1, 3)


class TestCount:
    def test_count(self):
        assert count([1, 2, 1], 1) == 2 and count([], 1) == 0


def test_clamp():
    assert [clamp(value, 2, 5) for value in (1, 3, 9)] == [2, 3, 5]


def test_power():
    assert power(3, 2) == 9 and power(5, 0) == 1 and power(2, 1) == 2


def test_has():
    assert has([1], 1) and not has([], 1)
"""
REPOSITORY = Repository(
    {"tiny/__init__.py": "", "tiny/lists.py": SOURCE}, {"tests/test_lists.py": TESTS, "tests/conftest.py": ""}
)
