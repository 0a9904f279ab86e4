"""Which of a judge's tokens decides, and what it says of each word."""

import math

import pytest

from cascade_rl.rl_stages.rewards.reward_models.choice import word_probabilities


def told(*tokens: dict[str, float] | str) -> list[dict[str, float]]:
    alternatives = [{token: 1.0} if isinstance(token, str) else token for token in tokens]
    return [{text: math.log(value) for text, value in token.items()} for token in alternatives]


CLOSE = ("</", "judgement", ">")
SPLIT = ("<", "judg", "ement", ">", {"YES": 0.7, "NO": 0.2, "Y": 0.05, "The": 0.05}, *CLOSE)
MERGED = ("<judgement", {">NO": 0.8, ">YES": 0.15}, "</judgement>")
RECONSIDERED = (
    "YES or <judgement>",
    {"NO": 1.0},
    *CLOSE,
    " hm ",
    "<judgement>",
    "\n",
    {" yes": 0.9, "NO": 0.1},
    *CLOSE,
)
CUT = ("<judgement>", {"Y": 0.6, "N": 0.4}, "ES", *CLOSE)


@pytest.mark.parametrize(
    ("tokens", "yes", "no"),
    [
        (SPLIT, 0.75, 0.2),
        (MERGED, 0.15, 0.8),
        (RECONSIDERED, 0.9, 0.1),
        (CUT, 0.6, 0.4),
        ((*MERGED, "</", "think", ">", *SPLIT), 0.75, 0.2),
    ],
)
def test_the_probabilities_are_those_at_the_deciding_token(
    tokens: tuple[dict[str, float] | str, ...], yes: float, no: float
) -> None:
    assert word_probabilities(told(*tokens), ("YES", "NO"), "<judgement>") == pytest.approx((yes, no))


@pytest.mark.parametrize(
    "tokens",
    [(), ("YES",), ("<judgement>", {"maybe": 0.9, "YES": 0.1}), ("<judgement>",), (*SPLIT, "</think>\n", "So YES")],
)
def test_without_a_choice_there_is_none(tokens: tuple[dict[str, float] | str, ...]) -> None:
    assert word_probabilities(told(*tokens), ("YES", "NO"), "<judgement>") is None
