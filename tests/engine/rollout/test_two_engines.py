"""Two engines behind one interface answer as one engine does, also when one of them dies."""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from cascade_rl.engine.core.parts import joined
from cascade_rl.engine.core.rollouts import PART, Request, Rollout, Sampling
from cascade_rl.engine.rollout.client import EngineDied
from cascade_rl.engine.rollout.last_parts import left
from cascade_rl.engine.rollout.protocol import AskHealth

from .conftest import CONFIG, Tiny, make_requests
from .test_engine_lifecycle import LONG, replace_under_way
from .test_rollouts import score_gaps

GROUP = 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    tiny = Tiny("llama", tmp_path_factory.mktemp("llama"), replace(CONFIG, engines=2))
    yield tiny
    tiny.engine.close()


def groups(count: int, sampling: Sampling) -> list[Request]:
    """GROUP requests for each prompt, their seeds different."""
    return [
        replace(request, id=f"{request.id}/{i}", seed=100 * request.seed + i)
        for request in make_requests(count, sampling)
        for i in range(GROUP)
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_samples_as_from_one_engine(engines: dict[str, Tiny], pair: Tiny, temperature: float) -> None:
    """The company of a request differs, and with it the sums' rounding: float32 tokens do not."""
    requests = groups(6, Sampling(max_new_tokens=24, temperature=temperature))
    for index in (1, 0):
        engines["llama"].load(index), pair.load(index)
        expected, found = engines["llama"].sample(requests), pair.sample(requests)
        assert found.keys() == expected.keys()
        for request_id, rollout in found.items():
            assert rollout.token_ids.tolist() == expected[request_id].token_ids.tolist()
            assert np.abs(rollout.logprobs - expected[request_id].logprobs).max() < 1e-5
            assert rollout.versions == ((pair.engine.version, 0),)


def test_an_update_reaches_both_while_requests_run(pair: Tiny) -> None:
    rollouts = replace_under_way(pair, groups(4, LONG))
    first = pair.engine.version - 1
    assert len(rollouts) == 4 * GROUP
    assert {tuple(version for version, _ in rollout.versions) for rollout in rollouts} == {(first, first + 1)}
    health = pair.engine.health()
    assert (health.version, health.unfinished) == (first + 1, 0)


def test_scores_come_back_in_order_from_both(pair: Tiny) -> None:
    sequences = [np.arange(3 + i, 20 + 3 * i) for i in range(5)]
    for index in (0, 1):
        reference = pair.load(index)
        before = pair.engine.health().steps
        scores = pair.engine.score(sequences)
        assert pair.engine.health().steps > before + 1
        for token_ids, scored in zip(sequences, scores, strict=True):
            assert score_gaps(scored, token_ids, reference).max() < pair.tolerance
        [alone] = pair.engine.score(sequences[:1])
        assert np.abs(alone.logprobs - scores[0].logprobs).max() < 1e-5


def drawn_by_the_first(pair: Tiny) -> int:
    """Tokens of finished samples, without those that another engine has drawn of them."""
    [health] = pair.engine._servers.ask({pair.engine._servers[0]: AskHealth()})
    return int(health.generated_tokens)


@pytest.mark.parametrize(
    ("fate", "told"),
    [(signal.SIGKILL, "engine died with"), (signal.SIGSTOP, "made no token and sent nothing for 2 s (rollout.silence")],
    ids=["killed", "stopped"],
)
def test_the_samples_of_a_lost_engine_go_on_elsewhere(pair: Tiny, fate: signal.Signals, told: str) -> None:
    """From their last parts and to the tokens that they would have had. The same weights again go to the new engine
    alone: the other one's samples have one version."""
    pair.load(0)
    engine, old, version = pair.engine, pair.engine.pids, pair.engine.version
    requests = groups(6, LONG)
    expected = pair.sample(requests)
    before = drawn_by_the_first(pair)
    found: dict[str, Rollout] = {}
    begun = Counter[str]()

    def collect(arriving: Iterator[Rollout]) -> None:
        for rollout in arriving:
            if rollout.finish == PART:
                begun[rollout.id] += len(rollout.token_ids)
                if len(begun) == len(requests) and min(begun.values()) > 10 and engine.pids == old:
                    os.kill(old[1], fate)
                    if fate is signal.SIGSTOP:
                        engine._servers[1]._limits = replace(CONFIG, silence_limit_s=2.0)
                        engine._servers[1]._renew()
            else:
                assert rollout.id not in found
                found[rollout.id] = rollout

    with pytest.raises(EngineDied, match=re.escape(told)) as died:
        collect(engine.generate(requests))
    assert (died.value.exit_code, died.value.log_path.name) == (-signal.SIGKILL, "engine-1.log")
    lost = died.value.pending_ids
    assert len(lost) == 3 * GROUP
    assert len({request_id.rsplit("/", 1)[0] for request_id in lost}) == 3

    assert engine.restart()
    assert engine.pids[0] == old[0]
    assert engine.pids[1] != old[1]
    assert engine.version == version
    rest = sum(LONG.max_new_tokens - len(engine._pending.requests[name].begun.token_ids) for name in lost)
    assert rest < len(lost) * (LONG.max_new_tokens - 10)
    collect(engine.generate(()))
    assert found.keys() == expected.keys()
    for request_id, rollout in found.items():
        assert rollout.token_ids.tolist() == expected[request_id].token_ids.tolist()
        assert np.abs(rollout.logprobs - expected[request_id].logprobs).max() < 1e-5
        assert rollout.versions == ((version, 0),)
        assert (len(rollout.passports) > 1) == (request_id in lost)
    assert drawn_by_the_first(pair) - before == rest + LONG.max_new_tokens * (len(requests) - len(lost))

    deadline = time.monotonic() + 300
    while not engine.awaits_weights():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    before, earlier, later = drawn_by_the_first(pair), groups(2, LONG), make_requests(1, LONG, seed=2)
    engine.submit(earlier)
    assert engine.lacking(version).keys() == {1}
    engine.update_weights(pair.images[0], version)  # while the first samples
    assert not engine.awaits_weights()
    assert pair.sample(later).keys() == {request.id for request in earlier + later}
    assert drawn_by_the_first(pair) - before == LONG.max_new_tokens * len(earlier)
    with pytest.raises(ValueError, match=f"expected more than {version}, found {version}"):
        engine.update_weights(pair.images[0], version)


def test_engines_that_lose_their_trainer_leave_the_tokens_that_they_have_drawn(pair: Tiny) -> None:
    """More than they had told, and of the samples that the trainer has not taken, those that had ended too."""
    pair.load(0)
    requests = [*groups(6, LONG), *make_requests(2, Sampling(max_new_tokens=4), seed=3)]
    expected = pair.sample(requests)
    told, taken = Counter[str](), list[str]()
    for turn in pair.engine.generate(requests):
        told[turn.id] += len(turn.token_ids)
        if turn.finish != PART:
            taken.append(turn.id)
        if taken and len(told) == len(requests):
            break
    in_good_hands = taken if turn.finish == PART else taken[:-1]
    pair.engine.close()
    with left(pair.left) as found:
        parts = {request: joined(parts) for request, parts in found}
    assert {request.id for request in parts} == expected.keys() - set(in_good_hands)
    assert set(parts) <= set(requests)
    for request, part in parts.items():
        whole, count = expected[request.id], len(part.token_ids)
        assert min(told[request.id], request.sampling.max_new_tokens - 1) <= count < len(whole.token_ids)
        assert part.token_ids.tolist() == whole.token_ids[:count].tolist()
        assert np.abs(part.logprobs - whole.logprobs[:count]).max() < 1e-5
