"""What vLLM keeps of a request, as parts that are the whole."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cascade_rl.engine.core.parts import joined
from cascade_rl.engine.core.rollouts import PART, Request, Rollout, Sampling
from cascade_rl.engine.rollout.sampled import Sampled

TOKENS = [11, 12, 13, 14]
# At each position the sampled token, then those that were kept; padding is below 0.
LOGPROBS: Any = SimpleNamespace(
    start_indices=[0, 3, 4, 6], token_ids=[11, 2, 11, 12, 13, 13, 14, -1], logprobs=[-1, -1, -1, -2, -3, -3, -4, -4]
)
ROWS = np.arange(10 * 4, dtype=np.int16).reshape(10, 2, 2)
ALL = Sampled(TOKENS, LOGPROBS, [(7, 0), (8, 2)])


def told(begun: tuple[int, ...], since: int, count: int, finish: str) -> Rollout:
    none = np.zeros(0)
    before = Rollout("a", none, np.array(begun), none, None, (), PART) if begun else None
    request = Request("a", (5, 6), Sampling(9), 1, before)
    until = Sampled(TOKENS[:count], LOGPROBS, [span for span in ALL.versions if span[1] < count])
    ends = [*LOGPROBS.start_indices, len(LOGPROBS.token_ids)]
    flat = {name: getattr(LOGPROBS, name)[: ends[count]] for name in ("token_ids", "logprobs")}
    grown: Any = SimpleNamespace(start_indices=LOGPROBS.start_indices[:count], **flat)
    rows = len(request.prompt_ids) + len(begun) + count - 1
    return until._replace(logprobs=grown).part(request, since, finish, lambda start: ROWS[start:rows])


@pytest.mark.parametrize("begun", [(), (8, 9)])
def test_parts_begin_where_the_part_before_ends(begun: tuple[int, ...]) -> None:
    whole = told(begun, 0, 4, "stop")
    parts = joined([told(begun, since, since + 1, PART if since < 3 else "stop") for since in range(4)])
    assert whole.prompt_ids.tolist() == [5, 6, *begun]
    for name in ("token_ids", "logprobs", "routes"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name)), name
    assert (parts.versions, parts.finish) == (whole.versions, whole.finish) == (((7, 0), (8, 2)), "stop")
    assert np.array_equal(parts.kept.ids, whole.kept.ids) and np.array_equal(parts.kept.counts, whole.kept.counts)
    assert len(whole.routes) == (4 if begun else 5)  # those before are known of a sample that goes on


def test_a_part_has_the_versions_of_its_tokens() -> None:
    assert [told((), since, 4, PART).versions for since in range(4)] == [
        ((7, 0), (8, 2)),
        ((7, 0), (8, 1)),
        ((8, 0),),
        ((8, 0),),
    ]
