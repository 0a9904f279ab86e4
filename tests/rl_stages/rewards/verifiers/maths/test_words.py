import pytest

from cascade_rl.rl_stages.rewards.verifiers.maths.words import read_number_words, same_words


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


@pytest.mark.parametrize(
    ("text", "value", "behind"),
    [
        ("zero", 0, ""),
        ("Twelve", 12, ""),
        ("seventeen people", 17, " people"),
        ("twenty-one", 21, ""),
        ("ninety nine", 99, ""),
        ("one hundred five", 105, ""),
        ("twelve hundred", 1200, ""),
        ("two thousand five hundred", 2500, ""),
        ("three million forty thousand seven cats", 3_040_007, " cats"),
        ("five million", 5_000_000, ""),
    ],
)
def test_a_number_in_words_is_read_and_the_rest_is_left(text, value, behind):
    assert read_number_words(text) == (value, behind)


@pytest.mark.parametrize(
    "text", ["", "a dozen", "tent", "five six", "twenty twenty", "two thousand three million", "hundred", "x twelve"]
)
def test_other_texts_are_no_number_in_words(text):
    assert read_number_words(text) is None
