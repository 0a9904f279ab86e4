"""Samples of one prompt share an engine, and the engines share the tokens."""

import numpy as np

from cascade_rl.engine.core.rollouts import Request, Sampling
from cascade_rl.engine.rollout.placement import place


def group(prompt: int, length: int, count: int, new: int = 10) -> list[Request]:
    """`count` requests of `length` + `new` tokens each."""
    return [Request(f"{prompt}/{i}", (prompt,) * length, Sampling(new), seed=i) for i in range(count)]


def test_a_prompt_stays_together() -> None:
    groups = [group(prompt, 5 + prompt, 4) for prompt in range(7)]
    mixed = [groups[prompt][i] for i in range(4) for prompt in range(7)]
    homes = place(mixed, [0, 0, 0])
    assert set(homes) == {0, 1, 2}
    for prompt in range(7):
        assert len({homes[i] for i, request in enumerate(mixed) if request.prompt_ids[0] == prompt}) == 1


def test_the_longest_go_first_to_the_engine_with_the_least_to_do() -> None:
    """90, 60, 50, 40 and 20 tokens: the first two open an engine each, then 60 + 50, 90 + 40, 110 + 20."""
    requests = [
        request for new, prompt in ((19, 1), (39, 2), (89, 3), (49, 4), (59, 5)) for request in group(prompt, 1, 1, new)
    ]
    assert place(requests, [0, 0]) == [1, 0, 0, 1, 1]
    assert place(requests, [1000, 0]) == [1] * 5


def test_the_shares_differ_by_no_more_than_the_largest_prompt() -> None:
    draw = np.random.default_rng(0)
    requests = [request for prompt in range(60) for request in group(prompt, int(draw.integers(5, 200)), 8)]
    homes = place(requests, [0] * 4)
    loads = np.bincount(homes, weights=[len(request.prompt_ids) + 10 for request in requests])
    assert np.ptp(loads) <= 8 * 210
