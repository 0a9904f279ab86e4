"""How long the trainer waits for a server that says nothing, and what it says then."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cascade_rl.engine.core.parts import joined
from cascade_rl.engine.core.rollouts import PART, Request, Rollout, Sampling
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout import server as server_module
from cascade_rl.engine.rollout import server_process
from cascade_rl.engine.rollout.last_parts import left
from cascade_rl.engine.rollout.protocol import AskHealth, Progress, Received, Reply, Settings, Submit
from cascade_rl.engine.rollout.seats import Seat
from cascade_rl.engine.rollout.server import Server
from cascade_rl.engine.rollout.server_process import EngineDied, EngineProcess
from tests.until import until

LONG, SHORT = 600.0, 0.3
REQUEST = Request("a", (5, 6), Sampling(4), seed=0)


class ThreadNode:
    """A node whose servers are threads, which run `serve` on their end of the connection."""

    host, ranks = "here", 0

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self.serve = serve

    def open(self, *_: Any) -> tuple[Connection, int]:
        ours, self.theirs = Pipe()
        threading.Thread(target=self.serve, args=(self.theirs,), daemon=True).start()
        return ours, 1

    def call(self, *_: Any) -> int:
        """Ends the server."""
        self.theirs.close()
        return -9


def started(serve: Callable[[Connection], None] | ThreadNode, folder: Path, **limits: float) -> EngineProcess:
    node = serve if isinstance(serve, ThreadNode) else ThreadNode(serve)
    (folder / "log").write_text("the last line\n")
    settings = Settings("model", RolloutConfig(**limits), 0)
    return EngineProcess(settings, 0, folder / "log", SimpleQueue(), Seat(node, range(1)))


def says_nothing(_: Connection) -> None: ...


def answers_once(connection: Connection) -> None:
    while not isinstance(connection.recv(), AskHealth):
        pass
    connection.send(Reply("healthy"))


def death_of(process: EngineProcess) -> EngineDied:
    return process.obituary(("a",))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The trainer's, `ahead` of others by seconds."""
    clock = SimpleNamespace(ahead=0.0, monotonic=lambda: clock.ahead + time.monotonic())
    monkeypatch.setattr(server_process, "time", clock)
    return clock


def test_a_start_has_a_limit_of_its_own(tmp_path: Path, clock: SimpleNamespace) -> None:
    slow = started(answers_once, tmp_path, start_limit_s=2 * LONG, silence_limit_s=SHORT)
    clock.ahead += LONG
    assert slow.starting
    slow.send(AskHealth())
    assert slow.reply() == Reply("healthy")
    assert not slow.starting
    never = started(says_nothing, tmp_path, start_limit_s=SHORT, silence_limit_s=LONG)
    never.send(AskHealth())
    assert never.reply() is None
    assert not never.starting
    told = str(death_of(never))
    assert told.startswith(
        "the rollout engine had not started after 0.3 s (rollout.start_limit_s) and was ended with exit code -9 and 1 "
        "pending requests [a]. Last lines of"
    )
    assert told.endswith("the last line")


def test_an_engine_that_falls_silent_is_stuck_while_it_has_work(tmp_path: Path, clock: SimpleNamespace) -> None:
    process = started(answers_once, tmp_path, silence_limit_s=LONG)
    process.send(AskHealth())
    assert process.reply()
    clock.ahead += LONG
    assert not process.stuck  # it has nothing to do
    process.send(Submit((REQUEST,)))
    assert not process.stuck
    clock.ahead += LONG
    assert process.stuck
    assert "made no token and sent nothing for 600 s (rollout.silence_limit_s)" in str(death_of(process))
    assert not process.alive


def test_a_command_may_take_longer_than_the_limit_while_steps_are_made(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = ThreadNode(answers_once)
    process = started(node, tmp_path, silence_limit_s=LONG)
    process.send(AskHealth())
    assert process.reply() == Reply("healthy")
    waits = list[float]()

    def get(timeout: float) -> Reply:
        """The wait of `reply`: shortly before the limit the server makes a step."""
        if len(waits) == 3:
            return Reply("scored")
        waits.append(timeout)
        clock.ahead += timeout - 60
        before = process._deadline
        node.theirs.send(Progress(len(waits)))
        until(lambda: process._deadline > before)
        clock.ahead += 60
        raise Empty

    monkeypatch.setattr(process, "_replies", SimpleNamespace(get=get))
    process.send(AskHealth())
    assert process.reply() == Reply("scored")
    assert sum(waits) > LONG


def test_an_engine_that_died_is_not_called_silent(tmp_path: Path) -> None:
    process = started(Connection.close, tmp_path, start_limit_s=SHORT)
    assert process.reply() is None
    assert str(death_of(process)).startswith("the rollout engine died with exit code -9")


class OneToken:
    """vLLM's log-probs of one token a position."""

    def __init__(self, tokens: list[int]) -> None:
        self.token_ids = self.logprobs = tokens

    @property
    def start_indices(self) -> range:
        return range(len(self.token_ids))


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Server, Connection, list[int]]:
    """A server whose engine takes a minute for a step and runs one request; the trainer's end; the request's tokens."""
    monkeypatch.setattr(server_module, "_engine_arguments", lambda _: {"enable_return_routed_experts": False})
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(server_module, "time", clock)
    tokens = list[int]()
    running = SimpleNamespace(
        external_req_id="a",
        detokenizer=SimpleNamespace(output_token_ids=tokens),
        weight_version_starts=[("3", 0)],
        logprobs_processor=SimpleNamespace(logprobs=OneToken(tokens)),
    )
    engine = SimpleNamespace(
        step=lambda: setattr(clock, "now", clock.now + 60) or [],
        collective_rpc=lambda *_: None,
        output_processor=SimpleNamespace(request_states={"a-1": running}),
        has_unfinished_requests=lambda: True,
    )
    monkeypatch.setattr(server_module, "_build_engine", lambda _: engine)
    ours, theirs = Pipe()
    limits = RolloutConfig(silence_limit_s=480, part_every_s=100)
    return Server(theirs, Settings("model", limits, 0, last_parts=tmp_path / "left/attempt")), ours, tokens


def test_a_server_tells_its_steps_a_few_times_in_the_limit(working: tuple[Server, Connection, list[int]]) -> None:
    """Eight minutes without any. Steps without a token are not told."""
    server, ours, tokens = working
    for step in range(16):
        tokens += [5] * (step < 8)
        server._step()
    server._connection.close()
    assert [ours.recv() for _ in range(3)] == [Progress(3), Progress(6), Progress(9)]
    with pytest.raises(EOFError):
        ours.recv()


def test_a_server_hands_over_what_is_new_of_unfinished_samples(working: tuple[Server, Connection, list[int]]) -> None:
    """Of their own version, also where newer weights have come since; nothing that nobody waits for."""
    server, ours, tokens = working
    server._tell_progress = lambda: None  # type: ignore[method-assign]
    server._asked["a"], server._cached_since["a"] = REQUEST, 4
    for step in range(12):
        tokens += [step] * (step < 7)
        server._step()
        if step == 9:
            del server._asked["a"]
            tokens += [99]
    server._connection.close()
    parts = [ours.recv() for _ in range(4)]
    assert [part.token_ids.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5], [6]]
    assert all(part.prompt_ids.tolist() == [5, 6] and part.finish == PART for part in parts)
    assert [passport.cache for part in parts for passport in part.passports] == [3] * 4
    assert [passport.end for part in parts for passport in part.passports] == [4, 6, 8, 9]
    with pytest.raises(EOFError):
        ours.recv()


def finish(server: Server, request: Request, tokens: list[int]) -> None:
    """The turn of `request` ends with these tokens, the first two of weights 3, the others of weights 4."""
    server._asked[request.id], server._cached_since[request.id] = request, 4
    spans = [SimpleNamespace(version="3", start=0), SimpleNamespace(version="4", start=2)]
    completion = SimpleNamespace(
        token_ids=tokens, logprobs=OneToken(tokens), weight_versions=spans[: len(tokens)], finish_reason="stop"
    )
    server._finish(SimpleNamespace(request_id=request.id, outputs=[completion]))


def test_a_server_that_loses_its_trainer_leaves_what_it_has_drawn(
    working: tuple[Server, Connection, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole samples that run, what was told of them included, by weight version. Of turns that ended, those that nobody
    has, without the token at which the next attempt finds that they end."""
    server, ours, tokens = working
    fates = list[str]()
    monkeypatch.setattr(server_module, "die_with_parent", lambda: fates.append("die"))
    monkeypatch.setattr(server_module, "outlive_parent", lambda: fates.append("outlive"))
    (tmp_path / "left/attempt").mkdir(parents=True)
    begun = Rollout("a", *[np.zeros(0)] * 2, np.zeros(0), None, ((2, 0),), PART)
    running = replace(REQUEST, begun=replace(begun, token_ids=np.array([8])))
    server._asked["a"], server._cached_since["a"] = running, 3
    tokens += [11, 12, 13]
    server._step()
    server._step()  # tells a part
    for name, drawn in (("received", [1, 2, 3]), ("ended", [1, 2, 3]), ("at once", [1])):
        finish(server, replace(REQUEST, id=name), drawn)
    ours.send(Received("received"))
    ours.close()
    with pytest.raises((EOFError, ConnectionError)):
        server.run()
    with left(tmp_path / "left") as found:
        parts = {request: joined(parts) for request, parts in found}
    assert list(parts) == [REQUEST, replace(REQUEST, id="ended")]
    assert all(request.begun is None for request in parts)
    whole, ended = parts.values()
    assert (whole.token_ids.tolist(), whole.passports[0].start, whole.finish) == ([11, 12, 13], 3, PART)
    assert (ended.token_ids.tolist(), ended.versions) == ([1, 2], ((3, 0),))
    assert fates == ["outlive"]


def test_a_server_with_nothing_to_leave_ends_with_its_trainer(
    working: tuple[Server, Connection, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, ours, _ = working
    fates = list[str]()
    monkeypatch.setattr(server_module, "die_with_parent", lambda: fates.append("die"))
    finish(server, REQUEST, [1, 2, 3])
    ours.send(Received("a"))
    ours.close()
    with pytest.raises((EOFError, ConnectionError)):
        server.run()
    assert fates == ["die"]
    assert not (tmp_path / "left").exists()
