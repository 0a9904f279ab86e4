"""What the client asks of its servers, and what it does when they die, with scripted servers instead of vLLM."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade_rl.engine.core.rollouts import PART, Request, Rollout, Sampling
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout import server_process as process
from cascade_rl.engine.rollout import servers as server_list
from cascade_rl.engine.rollout.client import EngineDied, RolloutEngine
from cascade_rl.engine.rollout.protocol import Reply, Score, Settings, Sleep, Submit, UpdateWeights

REQUESTS = [Request(f"{prompt}/{i}", (prompt, 7), Sampling(4), seed=i) for prompt in range(4) for i in range(3)]


class ScriptedServer:
    """Stands for EngineProcess: answers at once, draws what it is told to, and dies when it is told to.

    eager  draws whatever comes at once
    stuck  makes no progress
    starting  has not said anything yet
    """

    eager = stuck = starting = False

    def __init__(self, _settings: Settings, index: int, log_path: Path, arrivals: process.Arrivals, *_node: Any):
        self.index, self.log_path, self.version, self.alive = index, log_path, None, True
        self.told: list[Any] = []
        self.drawn: deque[Request] = deque()
        self.owed = set[str]()
        self._arrivals = arrivals

    def send(self, message: Any) -> bool:
        if self.alive:
            self.told.append(message)
            given = message.requests if isinstance(message, Submit) else ()
            self.drawn += given
            self.owed |= {request.id for request in given}
            self.finish(len(self.drawn) if self.eager else 0)
        return self.alive

    def reply(self) -> Reply | None:
        command = self.told[-1]
        scores = [(self.index, ids) for ids in command.sequences] if isinstance(command, Score) else None
        return Reply(scores) if self.alive else None

    def finish(self, count: int) -> None:
        for request in [self.drawn.popleft() for _ in range(count)]:
            ids = np.array(request.prompt_ids)
            self._arrivals.put((self, Rollout(request.id, ids, ids, np.zeros(2), None, ((self.version, 0),), "stop")))

    def tell(self, request_id: str, *ids: int) -> None:
        """A part of a sample that is still being drawn."""
        self._arrivals.put((self, part_of(request_id, ids, self.version, PART)))

    def die(self) -> None:
        self.alive = False
        self._arrivals.put((self, None))

    def received(self, request_id: str) -> None:
        self.owed.discard(request_id)

    def kill(self) -> None:
        self.alive = False

    def obituary(self, pending_ids: tuple[str, ...]) -> EngineDied:
        return EngineDied(-9, pending_ids, self.log_path, "")


def part_of(request_id: str, ids: Sequence[int], version: int, finish: str) -> Rollout:
    logprobs = -np.array(ids, np.float32)
    return Rollout(request_id, np.array([0, 7]), np.array(ids), logprobs, None, ((version, 0),), finish)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[RolloutEngine, list[Any]]]:
    """Starts a client with weights 0; returns it and its servers, a list that a restart changes."""
    monkeypatch.setattr(server_list, "EngineProcess", ScriptedServer)
    (tmp_path / "config.json").write_text('{"vocab_size": 10}')

    def started(**settings: Any) -> tuple[RolloutEngine, list[Any]]:
        engine = RolloutEngine(tmp_path, RolloutConfig(**settings), seed=0, log_path=tmp_path / "engine.log")
        engine.update_weights("image", 0)
        return engine, engine._servers._processes

    return started


def test_each_engine_has_its_log(start: Callable) -> None:
    _, servers = start(engines=3)
    assert [server.log_path.name for server in servers] == ["engine.log", "engine-1.log", "engine-2.log"]


def test_all_engines_may_die_at_once(start: Callable) -> None:
    """Each request comes out once; the new servers get what the dead ones had not sent, and no more."""
    engine, servers = start(engines=2)
    engine.submit(REQUESTS)
    for server, count in zip(servers, (2, 4), strict=True):
        server.finish(count)
        server.die()
    found: list[Rollout] = []
    for dead in (1, 2):  # results go on as long as there are some
        with pytest.raises(EngineDied) as died:
            found.extend(engine.results())
        assert len(died.value.pending_ids) == (4, 2)[dead - 1]
    assert len(found) == 6
    engine.restart()
    engine.update_weights("image", 0)
    assert [len(server.drawn) for server in servers] == [4, 2]
    for server in servers:
        server.finish(len(server.drawn))
    found.extend(engine.results())
    assert sorted(rollout.id for rollout in found) == [request.id for request in REQUESTS]


def test_a_death_is_told_until_the_server_is_replaced(start: Callable) -> None:
    engine, [server] = start()
    engine.submit(REQUESTS)
    server.die()
    for _ in range(2):
        with pytest.raises(EngineDied):
            next(engine.results())


def test_an_engine_without_progress_is_told_while_the_others_go_on(start: Callable) -> None:
    """Whatever arrives meanwhile is kept, and what the new engine draws comes out once."""
    engine, servers = start(engines=2)
    engine.submit(REQUESTS)
    servers[0].finish(len(servers[0].drawn))
    results = engine.results()
    found = [next(results)]
    servers[1].stuck = True
    with pytest.raises(EngineDied, match=r"6 pending .*engine-1\.log"):
        next(results)
    servers[1].die()  # its obituary ends it
    assert engine.restart()
    servers[0].finish(len(servers[0].drawn))
    found += engine.results()
    assert sorted(names(found)) == names(REQUESTS)


def test_what_arrived_before_a_restart_is_not_drawn_again(start: Callable) -> None:
    engine, servers = start()
    engine.submit(REQUESTS)
    servers[0].finish(5)
    servers[0].die()
    engine.restart()
    engine.update_weights("image", 0)
    assert [request.id for request in servers[0].drawn] == [request.id for request in REQUESTS[5:]]
    servers[0].finish(7)
    assert [rollout.id for rollout in engine.results()] == [request.id for request in REQUESTS]


def test_a_server_that_is_gone_does_not_keep_requests_from_the_others(start: Callable) -> None:
    engine, servers = start(engines=3)
    servers[1].die()
    with pytest.raises(EngineDied, match=r"engine-1\.log"):
        engine.submit(REQUESTS)
    assert [len(server.drawn) > 0 for server in servers] == [True, False, True]
    assert engine.restart()
    assert [len(server.drawn) for server in servers] == [6, 0, 6]
    engine.update_weights("image", 0)
    assert [sum(isinstance(told, UpdateWeights) for told in server.told) for server in servers] == [1, 1, 1]
    for server in servers:
        server.finish(len(server.drawn))
    assert {rollout.id for rollout in engine.results()} == {request.id for request in REQUESTS}


def test_a_refit_in_flight_waits_for_no_start(start: Callable) -> None:
    """The new engine gets its weights when it has started, alone, and samples from then on."""
    engine, servers = start(engines=2, placement="disaggregated", max_staleness=2)
    engine.submit(REQUESTS[:6])
    servers[1].die()
    with pytest.raises(EngineDied):
        next(engine.results())
    assert not engine.awaits_weights()
    assert engine.restart()
    servers[1].starting, servers[1].pid = True, 7
    assert not engine.awaits_weights()
    servers[0].pid = 6
    assert engine.lacking(1) == {0: 6}
    with engine.receiving([0], 1, "none"):
        pass
    assert engine.version == 1
    assert engine.lacking(1) == {}
    servers[1].starting = False
    assert engine.awaits_weights()
    assert engine.lacking(1) == {1: 7}
    with engine.receiving([1], 1, "none"):
        pass
    assert not engine.awaits_weights()
    engine.submit(REQUESTS[6:9])
    assert names(servers[1].drawn) == names(REQUESTS[6:9])


def test_one_that_cannot_start_is_not_waited_for_in_vain(start: Callable) -> None:
    engine, servers = start(engines=2, placement="disaggregated", max_staleness=2)
    engine.submit(REQUESTS)
    servers[1].die()
    with pytest.raises(EngineDied):
        next(engine.results())
    engine.restart()
    servers[1].die()
    assert not engine.awaits_weights()
    with pytest.raises(EngineDied, match=r"engine-1\.log"):
        engine.lacking(1)


def followed_by(following: Request | Rollout) -> Future[Request | Rollout]:
    future = Future[Request | Rollout]()
    future.set_result(following)
    return future


def second_turn(request_id: str) -> Request:
    return Request(request_id, (8, 8, 8), Sampling(4), seed=9)


def test_all_turns_of_a_sample_are_drawn_by_one_engine_which_does_not_sleep_between(start: Callable) -> None:
    engine, servers = start(engines=2, sleep=True)
    for server in servers:
        server.eager = True
    engine.submit(REQUESTS)
    first: list[str] = []
    for rollout in engine.results():
        if rollout.prompt_ids.tolist() != [8, 8, 8]:
            first.append(rollout.id)
            engine.expect(rollout.id, followed_by(second_turn(rollout.id)))
    assert sorted(first) == [request.id for request in REQUESTS]
    for server in servers:
        drawn = [[r.id for r in message.requests] for message in server.told if isinstance(message, Submit)]
        assert sorted(drawn[0]) == sorted(name for (name,) in drawn[1:])
        assert [server.told.index(Sleep(), 2), server.told[-1]] == [len(server.told) - 1, Sleep()]


def test_a_deterministic_engine_draws_the_next_turns_of_all_samples_together(start: Callable) -> None:
    """In the order of the samples, whatever comes first; a sample that ends after its turn holds nothing up."""
    engine, [server] = start(deterministic=True)
    engine.submit(REQUESTS[:4])
    server.drawn.reverse()
    results, following = engine.results(), dict[str, Future]()
    for _ in range(4):
        server.finish(1)
        name = next(results).id
        following[name] = Future()
        engine.expect(name, following[name])
    for name in (REQUESTS[2].id, REQUESTS[0].id, REQUESTS[1].id):
        assert not server.drawn
        following[name].set_result(second_turn(name))
    server.eager = True
    ended = Rollout(REQUESTS[3].id, *[np.zeros(1)] * 3, None, ((0, 0),), "stop")
    following[ended.id].set_result(ended)
    assert names(results) == [ended.id, *names(REQUESTS[:3])]
    assert [names(message.requests) for message in server.told if isinstance(message, Submit)] == [
        names(REQUESTS[:4]),
        names(REQUESTS[:3]),
    ]


def test_turns_that_wait_are_drawn_once_where_their_engine_dies(start: Callable) -> None:
    engine, servers = start(deterministic=True)
    engine.submit(REQUESTS[:2])
    servers[0].finish(1)
    results = engine.results()
    first = next(results).id
    engine.expect(first, followed_by(second_turn(first)))
    servers[0].die()
    with pytest.raises(EngineDied):
        next(results)
    engine.restart()
    engine.update_weights("image", 0)
    assert names(servers[0].drawn) == [REQUESTS[1].id]
    servers[0].eager = True
    servers[0].finish(1)
    assert names(engine.results()) == [REQUESTS[1].id, first]


def test_what_is_expected_outlives_a_restart(start: Callable) -> None:
    """A turn that is asked of a dead engine is drawn by its successor; a sample that ended meanwhile comes out."""
    engine, servers = start()
    engine.submit(REQUESTS[:2])
    servers[0].finish(2)
    turns = engine.results()
    ended = next(turns)
    engine.expect(ended.id, followed_by(ended))
    other = next(turns).id
    engine.expect(other, followed_by(second_turn(other)))
    servers[0].die()
    assert next(turns) is ended
    with pytest.raises(EngineDied, match="1 pending"):
        next(turns)
    engine.restart()
    engine.update_weights("image", 0)
    assert [request.id for request in servers[0].drawn] == [REQUESTS[1].id]
    servers[0].finish(1)
    assert [rollout.id for rollout in engine.results()] == [REQUESTS[1].id]


def test_a_sample_goes_on_elsewhere_from_its_last_part(start: Callable) -> None:
    """Also from there to a third engine, and nothing that was told is asked for again."""
    engine, servers = start(engines=3)
    engine.submit(REQUESTS[:1])
    homes, told = [], list[Rollout]()
    for ids in ((1, 2), (3,)):
        [home] = [server for server in servers if server.drawn and server.alive]
        homes.append(home.index)
        home.tell(REQUESTS[0].id, *ids)
        home.die()
        with pytest.raises(EngineDied, match="1 pending"):
            told += engine.generate(())
        assert engine.restart()
    [last] = [server for server in servers if server.drawn]
    [request] = last.drawn
    assert len({*homes, last.index}) == 3
    assert (request, request.begun.token_ids.tolist()) == (REQUESTS[0], [1, 2, 3])
    assert not len(request.begun.logprobs)  # ids alone are sent
    last._arrivals.put((last, part_of(request.id, [4], 0, "stop")))
    [*parts, whole] = [*told, *engine.generate(())]
    assert [part.token_ids.tolist() for part in parts] == [[1, 2], [3]]
    assert whole.logprobs.tolist() == [-1, -2, -3, -4]
    assert (whole.versions, whole.finish) == (((0, 0),), "stop")


def test_what_one_engine_alone_had_drawn_is_kept_until_it_is_replaced(start: Callable) -> None:
    engine, servers = start()
    engine.submit(REQUESTS[:2])
    servers[0].tell(REQUESTS[1].id, 5)
    servers[0].die()
    with pytest.raises(EngineDied):
        next(engine.results())
    assert not engine.restart()
    engine.update_weights("newer", 1)
    assert [request.begun and request.begun.token_ids.tolist() for request in servers[0].drawn] == [None, [5]]
    servers[0]._arrivals.put((servers[0], part_of(REQUESTS[1].id, [6], 1, "stop")))
    servers[0].finish(1)
    assert [rollout.versions for rollout in engine.results()] == [((0, 0), (1, 1)), ((1, 0),)]


def test_parts_are_not_samples(start: Callable) -> None:
    """Of one that nobody waits for, nothing is given out."""
    engine, [server] = start()
    engine.submit(REQUESTS[:1])
    server.tell(REQUESTS[0].id, 5)
    server.tell("unknown", 5)
    server.finish(1)
    assert names(engine.results()) == names(REQUESTS[:1])


def test_a_sample_is_in_good_hands_when_the_next_one_is_asked_for(start: Callable) -> None:
    engine, [server] = start()
    engine.submit(REQUESTS[:2])
    server.finish(2)
    results = engine.results()
    for known in (REQUESTS[:2], REQUESTS[1:2]):
        next(results)
        assert server.owed == {request.id for request in known}
    assert next(results, None) is None
    assert server.owed == set()


def test_the_living_share_what_a_dead_engine_had_prompt_by_prompt(start: Callable) -> None:
    """The turns of a sample whose environment works meanwhile go with its group."""
    engine, servers = start(engines=3)
    requests = [Request(f"{p}/{i}", (p % 10, p // 10), Sampling(4), seed=i) for p in range(60) for i in range(4)]
    engine.submit(requests)
    dead = names(servers[1].drawn)
    servers[1].finish(1)
    first = next(engine.results()).id
    following = Future[Request | Rollout]()
    engine.expect(first, following)
    servers[1].die()
    with pytest.raises(EngineDied):
        next(engine.results())
    assert engine.restart()
    assert [len(server.drawn) for server in servers] == [119, 0, 120]
    following.set_result(second_turn(first))
    for server in servers:
        server.eager = True
        server.finish(len(server.drawn))
    assert sorted(names(engine.results())) == sorted(names(requests))
    asked = [
        {request.id for told in server.told if isinstance(told, Submit) for request in told.requests}
        for server in servers
    ]
    homes = [{i for i in (0, 2) if name in asked[i]} for name in dead]
    assert all(len(home) == 1 for home in homes)
    assert all(homes[4 * group : 4 * group + 4] == [homes[4 * group]] * 4 for group in range(len(dead) // 4))


def names(requests: Iterable[Request | Rollout]) -> list[str]:
    return [request.id for request in requests]


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_is_drawn_already_is_drawn_only_to_keep_the_bits(start: Callable, deterministic: bool) -> None:
    """A deterministic engine draws the whole batch in its order, and gives out what was not there."""
    engine, [server] = start(deterministic=deterministic)
    there = {request.id for request in REQUESTS[::2]}
    engine.submit(REQUESTS, there)
    assert names(server.drawn) == names(REQUESTS if deterministic else REQUESTS[1::2])
    server.finish(len(server.drawn))
    assert names(engine.results()) == names(REQUESTS[1::2])


def test_an_engine_that_died_draws_its_whole_batch_again_where_bits_matter(start: Callable) -> None:
    """But no engine's that lives or had finished, and nothing comes out twice, also after a second death."""
    engine, servers = start(engines=3, deterministic=True)
    engine.submit(REQUESTS)
    shares = [names(server.drawn) for server in servers]
    servers[0].finish(1)
    servers[1].finish(1)
    servers[2].finish(len(shares[2]))
    results = engine.results()
    out = [next(results).id for _ in range(2 + len(shares[2]))]
    servers[0].die()
    servers[2].die()
    for gone in (0, 1):
        with pytest.raises(EngineDied):
            list(results)
        assert not engine.restart()
        engine.update_weights("image", 0)
        assert names(servers[0].drawn) == shares[0]
        assert names(servers[1].drawn) == shares[1][1:]
        assert names(servers[2].drawn) == []
        results = engine.results()
        if not gone:
            servers[0].finish(1)
            servers[0].die()
    for server in servers:
        server.finish(len(server.drawn))
    out += names(results)
    assert sorted(out) == sorted(names(REQUESTS))


def test_engines_agree_on_the_version_or_have_none(start: Callable) -> None:
    engine, servers = start(engines=2)
    servers[1].alive = False
    with pytest.raises(EngineDied):
        engine.update_weights("newer", 1)
    engine.restart()
    assert engine.version == 0
    engine.update_weights("newer", 1)
    assert engine.version == 1
    assert servers[1].told == [UpdateWeights("newer", 1)]
    for version in (0, 1):
        with pytest.raises(ValueError, match=f"expected more than 1, found {version}"):
            engine.update_weights("older", version)


def test_sequences_are_dealt_out_in_turn(start: Callable) -> None:
    engine, _ = start(engines=2)
    assert engine.score([[1], [2], [3]]) == [(0, (1,)), (1, (2,)), (0, (3,))]
    assert engine.score([[4]]) == [(0, (4,))]


def test_one_that_has_no_weights_yet_scores_nothing(start: Callable) -> None:
    engine, servers = start(engines=3)
    servers[1].die()
    engine.restart()
    assert engine.score([[1], [2], [3]]) == [(0, (1,)), (2, (2,)), (0, (3,))]


def test_engines_that_share_their_devices_sleep_whenever_they_are_done(start: Callable) -> None:
    """Not between new weights and the probe, where the trainer computes nothing."""
    engine, servers = start(engines=2, sleep=True)
    engine.score([[1], [2]])
    engine.submit(REQUESTS)
    for server in servers:
        assert [type(message) for message in server.told] == [UpdateWeights, Score, Sleep, Submit]
        server.finish(len(server.drawn))
    assert len(list(engine.results())) == len(REQUESTS)
    assert [type(message) for message in servers[1].told[4:]] == [Sleep]


def test_engines_do_not_sleep_unless_asked_to(start: Callable) -> None:
    engine, [server] = start()
    engine.score([[1]])
    assert Sleep() not in server.told
