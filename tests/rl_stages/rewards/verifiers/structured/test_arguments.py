import pytest

from cascade_rl.rl_stages.rewards.verifiers.structured.arguments import same_number, same_text, same_value, similar_text


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Rome", "rome "),
        ("San Francisco", "san  francisco"),
        ("Rome.", "rome"),
        ("Pay Ann 30, now!", "pay ann 30, NOW!"),
        ("caf\u00e9", "Cafe\u0301"),
        ("\u6771\u4eac", "\u6771\u4eac "),
        ("ls -la", "ls -la  "),
        ("NVDA", "nvda"),
    ],
)
def test_plain_words_may_differ_in_case_and_spaces(left, right):
    assert same_text(left, right)
    assert same_text(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("rm -rf tmp files", "rm -rf home files"),
        ("rm -r x", "rm -R x"),
        ("cd ..", "cd"),
        ("ls .", "ls"),
        ("flights from Rome to Paris", "flights from Paris to Rome"),
        ("x < y", "x > y"),
        ("x<y", "x>y"),
        ("a = b", "a == b"),
        ("a and b", "a or b"),
        ("do not pay", "do pay"),
        ("do not pay", "don't pay"),
        ("turn the light on please", "turn the light off please"),
        ("Pay Ann 30", "Pay Ann 90"),
        ("Ann, Bob", "Ann Bob"),
        ("Ann Bob", "AnnBob"),
        ("getUser", "getuser"),
        ("S901", "s901"),
        ("Path.home", "path.home"),
        ("1.5", "15"),
        ("-5", "5"),
        ("foo_bar", "foobar"),
        ("  x = 1", "x = 1"),
        ("if a\n  b", "if a\n b"),
        ("a\nb", "a b"),
        ("Really?", "Really"),
        ("", "a"),
        ("\u0430", "a"),  # the Cyrillic letter
        ("a\u200bb", "ab"),
    ],
)
def test_another_command_name_order_or_negation_is_another_text(left, right):
    assert not same_text(left, right)
    assert not same_text(right, left)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ("Pay Ann 30 for the red shoes", True),
        ("pay ann 30 for the shoes.", True),
        ("For the shoes pay Ann 30", True),
        ("Pay Ann 90 for the shoes", False),
        ("Do not pay Ann 30 for the shoes", False),
        ("Don't pay Ann 30 for the shoes", False),
        ("Pay Ann 30 -- for the shoes", False),
        ("30", False),
        ("Pay Ann 30 " + "and so on " * 20, False),
        ("", False),
    ],
)
def test_free_text_shares_its_words_and_every_number_and_negation(given, same):
    assert similar_text(given, "Pay Ann 30 for the shoes", threshold=0.3) == same


def test_the_highest_threshold_asks_for_the_same_words():
    assert similar_text("the shoes for Ann", "the shoes, for ann", 0.5)
    assert not similar_text("the red shoes for Ann", "the shoes for Ann", 0.5)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (3, 3.0, True),
        (3, 3.0000001, True),
        (0.1 + 0.2, 0.3, True),
        (48.858370, 48.858371, True),
        (1_000_000, 1_000_000.5, False),
        (1_700_000_000, 1_700_000_001.0, False),
        (9.1093837e-31, 1.67262192e-27, False),
        (0.0, 1e-9, False),
        (-1e-9, 1e-9, False),
        (2**53, 2.0**53, True),
        (2**53 + 1, 2.0**53, False),
        (2**1024 - 1, 1.0, False),  # no double
        (1e308, 1.0000001e308, False),
    ],
)
def test_numbers_are_as_close_as_gyms_and_closer_below_one(left, right, same):
    assert same_number(left, right) == same_number(right, left) == same


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, True), (0, None), ("1", 1), ("true", True), ([], {}), ([1, 2], [2, 1]), ({"a": None}, {}), ([1], [1, 1])],
)
def test_other_types_orders_and_keys_differ(left, right):
    assert not same_value(left, right)
    assert not same_value(right, left)
