"""Rewards of a Bradley-Terry model in a folder, computed in processes of their own, one on each card that samples.

Trainer ranks cannot do it: Megatron takes one layout per process, and they wait in a collective call while answers are
sampled and scored. Each process holds the whole model on its card.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from cascade_rl.engine.cluster.node import Node, NodeLost, ThisNode
from cascade_rl.engine.core.settings import Precision
from cascade_rl.engine.rollout.protocol import StartServer
from cascade_rl.engine.rollout.seats import Seat
from cascade_rl.engine.rollout.server_process import end_server, launch_server
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.conversation import Conversation
from cascade_rl.rl_stages.rewards.reward_models.bradley_terry.server import Model
from cascade_rl.rl_stages.rewards.reward_models.server_client import JudgeFailure

SERVER = "cascade_rl.rl_stages.rewards.reward_models.bradley_terry.server"


class ScorerDied(JudgeFailure):
    """The scoring process that a group went to is gone. Its log says why."""


class BradleyTerryScorer:
    """Scores in one process on each of the `seats`. Safe to call from several threads.

    A group goes to one process as a whole, so its rewards do not depend on how many there are. The constructor waits
    until each has read the model, and raises the UserError that it meets. The processes end with `close`, or with the
    thread that made them. One that dies fails each group that it gets.

    folder  a published reward model, or the export of a `reward_model` stage
    dtype   of hidden states
    """

    def __init__(
        self, folder: Path, dtype: Precision, log_path: Path, seats: Sequence[Seat] = (Seat(ThisNode(), range(1)),)
    ) -> None:
        self.folder = folder
        model = Model(folder, dtype)
        self._processes = [_Process(node, StartServer(cards, log_path, SERVER)) for node, cards in seats]
        self.concurrency = len(self._processes)
        self._free: SimpleQueue[_Process] = SimpleQueue()
        try:
            self._open(model)
        except BaseException:
            self.close()
            raise

    def score(self, conversations: Sequence[Conversation]) -> list[float]:
        """See `RewardScorer`."""
        process = self._free.get()
        try:
            process.send(conversations)
            return process.reply()
        finally:
            self._free.put(process)

    def close(self) -> None:
        """See `RewardScorer`. On return the processes are gone."""
        while self._processes:
            self._processes.pop().end()

    def _open(self, model: Model) -> None:
        for process in self._processes:
            process.send(model)
        for process in self._processes:
            if refusal := process.reply():
                raise refusal
            self._free.put(process)


class _Process:
    """The handle of a process on `node`."""

    def __init__(self, node: Node, order: StartServer) -> None:
        self._node, self._log_path = node, order.log_path
        self._connection: Connection
        self._connection, self.pid = node.open(launch_server, order)

    def send(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except OSError:
            raise self._obituary() from None

    def reply(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise self._obituary() from None

    def end(self) -> None:
        with suppress(NodeLost):  # it ended with its node
            self._node.call(end_server, self.pid)

    def _obituary(self) -> ScorerDied:
        return ScorerDied(f"the reward model's process {self.pid} on {self._node.host} is gone; see {self._log_path}")
