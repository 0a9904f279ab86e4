"""The server processes of all engines: started on their nodes, asked together, replaced when they died."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cascade_rl.engine.cluster.node import Node
from cascade_rl.engine.rollout.last_parts import LAST_PARTS_SECONDS
from cascade_rl.engine.rollout.pending import Pending
from cascade_rl.engine.rollout.protocol import Settings
from cascade_rl.engine.rollout.seats import seats
from cascade_rl.engine.rollout.server_process import Arrivals, EngineDied, EngineProcess


class Servers:
    """One process for each engine, in the order of the engines.

    Engine 0 logs to `log_path`, engine i to the same name with `-i` before its suffix. `seats` says where each runs.
    """

    def __init__(
        self, settings: Settings, log_path: Path, nodes: Sequence[Node], pending: Pending, arrivals: Arrivals
    ) -> None:
        self._settings, self._log_path, self._seats = settings, log_path, seats(settings.config, nodes)
        self._pending, self._arrivals = pending, arrivals
        self._processes = [self._start(index) for index in range(settings.config.engines)]

    def __iter__(self) -> Iterator[EngineProcess]:
        return iter(self._processes)

    def __len__(self) -> int:
        return len(self._processes)

    def __getitem__(self, index: int) -> EngineProcess:
        return self._processes[index]

    @property
    def version(self) -> int | None:
        """Version of the weights that all have that have any; None before the first, and while they differ."""
        versions = {process.version for process in self if process.version is not None}
        return versions.pop() if len(versions) == 1 else None

    @property
    def able(self) -> list[EngineProcess]:
        """Those with weights to sample from. One that replaces a dead one has none before the next ones."""
        return [process for process in self if process.version is not None]

    def behind(self, version: int) -> list[EngineProcess]:
        """Those without these weights. Raises ValueError where there is none, or where one has newer weights."""
        behind = [process for process in self if process.version != version]
        newest = max((process.version for process in self if process.version is not None), default=-1)
        if version < newest or not behind:
            raise ValueError(f"weight version must grow: expected more than {newest}, found {version}")
        return behind

    def ask(self, commands: Mapping[EngineProcess, Any]) -> list[Any]:
        """The answers of several servers, which work at the same time. Raises EngineDied."""
        with self.answering(commands) as answers:
            pass
        return answers

    def ask_all(self, command: Any) -> list[Any]:
        """The answers of all servers to one command."""
        return self.ask(dict.fromkeys(self, command))

    @contextmanager
    def answering(self, commands: Mapping[EngineProcess, Any]) -> Iterator[list[Any]]:
        """Servers work on their commands while the block runs; their answers are in the list after it."""
        answers = list[Any]()
        asked = [process for process, command in commands.items() if process.send(command)]
        yield answers
        replies = {process: process.reply() for process in asked}
        for process in commands:
            if (reply := replies.get(process)) is None:
                raise self.death_of(process)
            answers.append(reply.value)

    def death_of(self, process: EngineProcess) -> EngineDied:
        """The error to raise for a server that is gone, with the requests that it had not finished."""
        return process.obituary(tuple(request.id for request in self._pending.on(process.index)))

    def replace_dead(self) -> list[EngineProcess]:
        """Starts a new process for each that is dead; returns the dead ones."""
        dead = [process for process in self if not process.alive]
        for process in dead:
            process.kill()
            self._processes[process.index] = self._start(process.index)
        return dead

    def close(self) -> None:
        """Ends all. Those with samples leave what they have drawn, all at the same time."""
        for process in self:
            process.hang_up()
        deadline = time.monotonic() + LAST_PARTS_SECONDS
        for process in self:
            process.kill(deadline)

    def _start(self, index: int) -> EngineProcess:
        path = self._log_path
        log_path = path.with_stem(f"{path.stem}-{index}") if index else path
        return EngineProcess(self._settings, index, log_path, self._arrivals, self._seats[index])
