"""How long the trainer waits for a server that says nothing, and what it says then."""

import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from cascade_rl.engine.core.rollouts import PART, Request, Sampling
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout import server as server_module
from cascade_rl.engine.rollout.protocol import AskHealth, Progress, Reply, Settings, Submit
from cascade_rl.engine.rollout.server import Server
from cascade_rl.engine.rollout.server_process import EngineDied, EngineProcess

LONG, SHORT = 60.0, 0.3
REQUEST = Request("a", (5, 6), Sampling(4), seed=0)


class ThreadNode:
    """A node whose servers are threads, which run `serve` on their end of the connection."""

    host = "here"

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


def started(serve: Callable[[Connection], None], folder: Path, **limits: float) -> EngineProcess:
    (folder / "log").write_text("the last line\n")
    settings = Settings("model", RolloutConfig(**limits), 0)
    return EngineProcess(settings, 0, folder / "log", SimpleQueue(), ThreadNode(serve), 0)


def says_nothing(_: Connection) -> None: ...


def answers_once(connection: Connection) -> None:
    while not isinstance(connection.recv(), AskHealth):
        pass
    connection.send(Reply("healthy"))


def works_for_a_while(connection: Connection) -> None:
    answers_once(connection)
    connection.recv()
    for steps in range(12):
        time.sleep(0.25)
        connection.send(Progress(steps))
    connection.send(Reply("scored"))


def death_of(process: EngineProcess) -> EngineDied:
    return process.obituary(("a",))


def test_a_start_has_a_limit_of_its_own(tmp_path: Path) -> None:
    slow = started(answers_once, tmp_path, start_limit_s=LONG, silence_limit_s=SHORT)
    time.sleep(2 * SHORT)
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


def test_an_engine_that_falls_silent_is_stuck_while_it_has_work(tmp_path: Path) -> None:
    process = started(answers_once, tmp_path, silence_limit_s=SHORT)
    process.send(AskHealth())
    assert process.reply()
    time.sleep(2 * SHORT)
    assert not process.stuck  # it has nothing to do
    process.send(Submit((REQUEST,)))
    assert not process.stuck
    time.sleep(2 * SHORT)
    assert process.stuck
    assert "made no token and sent nothing for 0.3 s (rollout.silence_limit_s)" in str(death_of(process))
    assert not process.alive


def test_a_command_may_take_longer_than_the_limit_while_steps_are_made(tmp_path: Path) -> None:
    process = started(works_for_a_while, tmp_path, silence_limit_s=2.0)
    process.send(AskHealth())
    assert process.reply() == Reply("healthy")
    process.send(AskHealth())
    assert process.reply() == Reply("scored")  # after three seconds


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
def working(monkeypatch: pytest.MonkeyPatch) -> tuple[Server, Connection, list[int]]:
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
    )
    monkeypatch.setattr(server_module, "_build_engine", lambda _: engine)
    ours, theirs = Pipe()
    return Server(theirs, Settings("model", RolloutConfig(silence_limit_s=480, part_every_s=100), 0)), ours, tokens


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
