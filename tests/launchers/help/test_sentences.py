"""The table in a class's docstring: its entries, whom they are for, and what is none."""

from dataclasses import dataclass

import pytest

from cascade_rl.launchers.help.sentences import introduction, sentence


@dataclass
class Rate:
    """How fast.

    One more paragraph.

    lr, min_lr  rate after the warm-up,
                and at the end
    steps       "few": one
                  "many": more
    other       is no field
    """

    lr: float
    min_lr: float
    steps: int
    unsaid: int = 0


@dataclass
class Faster(Rate):
    """Faster.

    steps  its own
    """


@pytest.mark.parametrize(
    ("cls", "name", "text"),
    [
        (Rate, "lr", "rate after the warm-up, and at the end"),
        (Rate, "min_lr", "rate after the warm-up, and at the end"),
        (Rate, "steps", '"few": one "many": more'),
        (Faster, "steps", "its own"),
        (Faster, "lr", "rate after the warm-up, and at the end"),
    ],
)
def test_an_entry_is_of_its_fields(cls: type, name: str, text: str) -> None:
    assert sentence(cls, name) == text


def test_a_field_without_an_entry_is_an_error() -> None:
    with pytest.raises(KeyError, match="the docstring of Rate has no entry for its field unsaid"):
        sentence(Rate, "unsaid")


def test_the_introduction_is_what_is_no_entry() -> None:
    assert introduction(Rate) == "How fast.\n\nOne more paragraph."
