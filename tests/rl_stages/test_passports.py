"""A sample is learned from only if it is what its engine said of it: each fault is injected, and called by its name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cascade_rl.engine.core.passport import passport_of
from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.passports import BrokenPassport, require_passports
from cascade_rl.rl_stages.scoring.scored_sample import Sample
from cascade_rl.rl_stages.scoring.turns import join

STEP, HEAT = 3, 0.7
TASK = Task("math-1", "math", ({"role": "user", "content": "?"},), {})


def turn(prompt: list[int], version: int, count: int = 4, cache: int | None = None) -> Rollout:
    """A turn as an engine gives it out."""
    rng = np.random.default_rng(len(prompt))
    bare = Rollout(
        id="rl/4/0/math-1/0",
        prompt_ids=np.array(prompt),
        token_ids=rng.integers(0, 99, count),
        logprobs=-rng.random(count, np.float32),
        routes=rng.integers(0, 8, (len(prompt) + count - 1, 2, 2)).astype(np.int16),
        versions=((version, 0),),
        finish="stop",
    )
    request = Request(bare.id, tuple(prompt), Sampling(8, temperature=HEAT), seed=5)
    return replace(bare, passports=(passport_of(bare, request, version if cache is None else cache),))


def two_turns(versions: tuple[int, int] = (STEP, STEP), cache: int | None = None) -> Rollout:
    """The second was sampled from weights that may be newer. Its prompt is computed again, by other experts perhaps."""
    first = turn([1, 2, 3], versions[0])
    return join([first, turn([1, 2, 3, *first.token_ids.tolist(), 7, 8], versions[1], cache=cache)])


def unchanged(whole: TrainSequence) -> TrainSequence:
    return whole


ON_POLICY = RolloutConfig()
AHEAD = RolloutConfig(placement="disaggregated", max_staleness=1)
KEPT = RolloutConfig(placement="disaggregated", max_staleness=2, cache_at_refit="kept")


def check(
    rollout: Rollout,
    change: Callable[[TrainSequence], TrainSequence] = unchanged,
    config: RolloutConfig = ON_POLICY,
) -> None:
    sample = Sample(TASK, rollout, "", Verdict.scored(1.0), 0.5)
    require_passports([sample], [change(sample.sequence(HEAT))], STEP, config)


@pytest.mark.parametrize("routes", [np.int16, np.uint8, None])
def test_what_the_engine_gave_is_accepted_whatever_way_it_came(routes: Any) -> None:
    whole = two_turns()
    assert whole.routes is not None
    check(replace(whole, routes=whole.routes.astype(routes)) if routes else whole)
    check(two_turns((STEP - 1, STEP)), config=AHEAD)
    check(replace(whole, passports=()))  # of an engine that gives none


def test_an_engine_may_keep_its_cache_where_the_key_says_so() -> None:
    """A turn that new weights reached after its second token."""
    mixed = replace(turn([1, 2, 3], STEP, cache=STEP - 1), versions=((STEP - 1, 0), (STEP, 2)))
    check(mixed, config=KEPT)
    with pytest.raises(BrokenPassport, match="cache: kept since weight version 2, expected 3"):
        check(mixed, config=replace(KEPT, cache_at_refit="recomputed"))
    for oldest in (STEP - 3, STEP):  # too old, and never the state of its first token
        with pytest.raises(BrokenPassport, match=f"cache: kept since weight version {oldest}, expected 1 to 2"):
            check(replace(mixed, passports=(replace(mixed.passports[0], cache=oldest),)), config=KEPT)


def other_heat(whole: TrainSequence) -> TrainSequence:
    return replace(whole, temperature=1.0)


def other_tokens(whole: TrainSequence) -> TrainSequence:
    """The text, tokenised again: one id in the first turn is another."""
    ids = whole.token_ids.copy()
    ids[4] += 1
    return replace(whole, token_ids=ids)


def other_logprobs(whole: TrainSequence) -> TrainSequence:
    moved = whole.per_token["rollout_logprob"].copy()
    moved[-1] += 1e-3
    return replace(whole, per_token={**whole.per_token, "rollout_logprob": moved})


def routed_again(whole: TrainSequence) -> TrainSequence:
    """A retracted turn's experts as the prefill of its second computation chose them (radixark/miles#3277)."""
    assert whole.routes is not None
    routes = whole.routes.copy()
    routes[3, 0] = routes[3, 0][::-1] + 1
    return replace(whole, routes=routes)


def unrouted(whole: TrainSequence) -> TrainSequence:
    return replace(whole, routes=None)


@pytest.mark.parametrize(
    ("rollout", "change", "name"),
    [
        (two_turns((STEP, STEP + 1)), unchanged, "version: expected 2 to 3"),  # which was never sent
        (two_turns((STEP - 2, STEP)), unchanged, "version: expected 2 to 3"),
        (replace(two_turns(), versions=((STEP, 1),)), unchanged, "version: expected spans"),
        (replace(two_turns(), versions=()), unchanged, "version: expected spans"),
        (two_turns((STEP - 1, STEP), cache=STEP - 1), unchanged, "cache: kept since weight version 2, expected 3"),
        (replace(two_turns(), versions=((STEP, 0), (STEP - 1, 2))), unchanged, "version: expected spans"),
        (two_turns(), other_heat, "temperature: log-probs are at 0.7, the trainer's"),
        (two_turns(), other_tokens, "tokens: the first 7 ids are not those that were sampled"),
        (two_turns(), other_logprobs, "log-probs: not those of the sampled tokens"),
        (two_turns(), routed_again, "routes: not the experts of the first computation"),
        (two_turns(), unrouted, "routes: not the experts of the first computation"),
    ],
)
def test_a_fault_is_called_by_its_name(
    rollout: Rollout, change: Callable[[TrainSequence], TrainSequence], name: str
) -> None:
    with pytest.raises(BrokenPassport, match=f"step 4: .*rl/4/0/math-1/0: {name}"):
        check(rollout, change, AHEAD)


def test_a_sample_that_lost_its_passport_is_told() -> None:
    samples = [Sample(TASK, rollout, "", Verdict.scored(1.0)) for rollout in (two_turns(), two_turns())]
    samples[1] = replace(samples[1], rollout=replace(samples[1].rollout, passports=()))
    with pytest.raises(BrokenPassport, match="passport: some samples have none"):
        require_passports(samples, [sample.sequence(HEAT) for sample in samples], STEP, ON_POLICY)
