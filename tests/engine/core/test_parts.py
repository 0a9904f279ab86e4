"""A turn that was told in parts is the turn, for whoever learns from it too."""

from dataclasses import replace

import numpy as np
import pytest

from cascade_rl.engine.core.parts import joined
from cascade_rl.engine.core.passport import faults, passport_of
from cascade_rl.engine.core.rollouts import PART, Kept, Request, Rollout, Sampling
from cascade_rl.engine.core.train_sequence import TrainSequence

PROMPT, ANSWER = np.array([5, 6, 7]), np.array([11, 12, 13, 14, 15])
LOGPROBS = np.array([-0.5, -1.5, -0.25, -2.0, -1.0], np.float32)
ROUTES = np.arange(7 * 2 * 2, dtype=np.int16).reshape(7, 2, 2)
KEPT = Kept(np.array([11, 12, 3, 13, 15, 4], np.int32), np.array([1, 2, 1, 0, 2], np.int32))
VERSIONS = ((3, 0), (4, 3))
REQUEST = Request("a", (5, 6, 7), Sampling(9), seed=1)


def part(start: int, end: int, finish: str = PART) -> Rollout:
    """What an engine tells of the tokens from `start` on."""
    versions = np.array([3, 3, 3, 4, 4])[start:end]
    spans = tuple((int(version), int(np.argmax(versions == version))) for version in np.unique(versions))
    told = Rollout(
        id="a",
        prompt_ids=np.concatenate([PROMPT, ANSWER[:start]]),
        token_ids=ANSWER[start:end],
        logprobs=LOGPROBS[start:end],
        routes=ROUTES[len(PROMPT) + start - 1 if start else 0 : len(PROMPT) + end - 1],
        versions=spans,
        finish=finish,
        kept=Kept(KEPT.ids[KEPT.counts[:start].sum() : KEPT.counts[:end].sum()], KEPT.counts[start:end]),
    )
    passport = passport_of(told, REQUEST, cache=int(versions[-1]))
    return replace(told, prompt_ids=PROMPT, passports=(passport,))


@pytest.mark.parametrize("cuts", [(), (2,), (3,), (1, 2, 3, 4)])
def test_parts_make_the_turn(cuts: tuple[int, ...]) -> None:
    ends = (*cuts, 5)
    whole = joined(
        [part(start, end, "stop" if end == 5 else PART) for start, end in zip((0, *cuts), ends, strict=True)]
    )
    assert (whole.prompt_ids.tolist(), whole.token_ids.tolist()) == (PROMPT.tolist(), ANSWER.tolist())
    assert np.array_equal(whole.logprobs, LOGPROBS) and np.array_equal(whole.routes, ROUTES)
    assert np.array_equal(whole.kept.ids, KEPT.ids) and np.array_equal(whole.kept.counts, KEPT.counts)
    assert (whole.versions, whole.finish, whole.turns, whole.generated) == (VERSIONS, "stop", 1, None)
    learned = TrainSequence(
        np.concatenate([PROMPT, ANSWER]),
        np.arange(7) >= 2,
        per_token={"rollout_logprob": np.concatenate([np.zeros(2, np.float32), LOGPROBS])},
        routes=ROUTES,
    )
    caches = [range(newest, newest + 1) for newest in (4 if end > 3 else 3 for end in ends)]
    assert not list(faults(whole.passports, learned, caches))
    lost = replace(learned, token_ids=learned.token_ids[::-1])
    assert len(list(faults(whole.passports, lost, caches))) == len(ends)


def test_nothing_dropped_in_any_part_is_nothing_dropped() -> None:
    assert joined([replace(part(0, 2), kept=None), replace(part(2, 5), kept=None)]).kept is None
    [counts] = [joined([replace(part(0, 2), kept=None), part(2, 5)]).kept.counts]
    assert counts.tolist() == [0, 0, 1, 0, 2]
