import pytest

from cascade_rl.rl_stages.rewards.verifiers.maths.parts import bracketed, tuple_elements, values


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("5", ["5"]),
        ("1, 2; 3 and 4", ["1", "2", "3", "4"]),
        (r"2 \text{ or } 3", ["2", "3"]),
        ("(1, 2), [3, 4)", ["(1, 2)", "[3, 4)"]),
        (r"x \in \{1, 2\}", ["1", "2"]),
        (r"\{1\} \cup \{2\}", [r"\{1\} \cup \{2\}"]),
        (r"\{x \mid x > 2\}", [r"\{x \mid x > 2\}"]),
        (r"1 \pm \sqrt{2}", [r"1 + \sqrt{2}", r"1 - \sqrt{2}"]),
        (r"\gcd(12, 18)", [r"\gcd(12, 18)"]),
        (r"\text{Monday and Tuesday}", [r"\text{Monday and Tuesday}"]),
        (r"\begin{matrix} 1, 2 \end{matrix}", [r"\begin{matrix} 1, 2 \end{matrix}"]),
        ("", []),
    ],
)
def test_values(text, found):
    assert values(text) == found


def test_brackets():
    assert bracketed("(1) + (2)") is None
    assert bracketed(r"\{1\}") == (r"\{", "1", r"\}")
    assert tuple_elements("[1, 2)") == ("[)", ["1", "2"])
    assert tuple_elements("(1)") is None
    assert tuple_elements(r"\{1, 2\}") is None
