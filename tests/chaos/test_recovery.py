"""What a kill has cost is told from what was drawn, and when."""

from tests.chaos.drawn_tokens import Draw
from tests.chaos.recovery import Kill, costs, table


def test_each_kill_has_what_was_drawn_again_because_of_it() -> None:
    """The first one has lost two tokens of each sample; those of one are drawn again after the second one."""
    draws = [Draw(1, "a", 5, 9), Draw(2, "b", 5, 7), Draw(4, "a", 7, 12), Draw(8, "a", 11, 13), Draw(9, "b", 5, 9)]
    draws += [Draw(when, "heldout-d/0", 1, 9) for when in (0, 10.5)]
    kills = [Kill("engine", 3, 2), Kill("engine", 5, 2), Kill("launcher", 10, 2)]
    found = costs(kills, draws, [4.5, 2.0, 11.0])
    assert [one[1:] for one in found] == [(1, 1.5, 4), (3, 6.0, 1), (0.5, 1.0, 0)]
    assert table(found).splitlines()[2:] == [
        "| 2 | engine | 2 | 2.0, 3.0 | 3.8, 6.0 | 2.5, 4.0 |",
        "| 2 | launcher | 1 | 0.5, 0.5 | 1.0, 1.0 | 0.0, 0.0 |",
    ]
