import pytest

from cascade_rl.rl_stages.rewards.verifiers.maths.words import same_words


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        (r"\text{Monday}", "monday", True),
        (r"\text{no solution}", r"\text{No} \text{ solution}", True),
        (r"\text{no}", "on", False),
        ("B", r"\text{(B)}", True),
        ("abc", "bca", None),
        ("5", "five", None),
        (r"\text{Monday}", r"\sqrt{2}", None),
    ],
)
def test_words(expected, given, same):
    assert same_words(expected, given) is same
