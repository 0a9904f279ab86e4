import re

import pytest

from cascade_rl.rl_stages.rewards.verifiers.structured.ecma_pattern import python_pattern


@pytest.mark.parametrize(
    ("pattern", "found", "other"),
    [
        (r"^\d+$", "12", "\u0663"),
        (r"^\d+$", "12", "12\n"),
        (r"^[\w.]+$", "a_1.", "\u00e9"),
        (r"^\W$", "\u00e9", "a"),
        (r"^[^\d]$", "\u0663", "3"),
        (r"\bfoo", "\u00e9foo", "efoo"),
        (r"^\s$", "\ufeff", "\x1c"),
        (r"^[\s,]$", "\u2028", "a"),
        (r"^\S$", "\x85", "\u00a0"),
        (r"^[\s\S]$", "\n", "ab"),
        ("^.$", "a", "\u2028"),
        (r"^\$[$.]$", "$.", "$a"),
        (r"^[[]\]$", "[]", "]"),
        (r"^(?<year>\d{4})$", "2024", "24"),
        (r"(?<=a)b(?<!c)$", "ab", "b"),
    ],
)
def test_an_expression_finds_what_ecma_262_does(pattern, found, other):
    compiled = re.compile(python_pattern(pattern))
    assert compiled.search(found) and not compiled.search(other)


@pytest.mark.parametrize("pattern", [r"\p{L}", r"\cA", "[]"])
def test_what_python_cannot_say_is_refused(pattern):
    with pytest.raises(re.error):
        re.compile(python_pattern(pattern))
