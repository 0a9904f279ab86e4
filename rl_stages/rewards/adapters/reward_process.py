"""Verdicts of reward code that `shim.py` runs in a separate process, which is killed at a deadline."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core import parent_death
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.deadline_worker import Reply, Worker, WorkerDied, asked_twice

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

DEADLINE_SECONDS = 30.0
SHIM = (str(Path(__file__).with_name("shim.py")), str(Path(parent_death.__file__)))  # and its first argument


class ProcessVerifier:
    """The score that the code gives to the text after the reasoning. It may have any range.

    `None`, an exception, no reply within the deadline and a second death of the process say nothing about the answer.
    They are infrastructure failures, so that the sample is masked. Safe to call from several threads. The process
    starts with the first call.
    """

    concurrency = 1

    def __init__(self, command: Sequence[str], deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._command = command
        self._deadline = deadline_seconds
        self._worker: Worker | None = None
        self._lock = threading.Lock()

    def __call__(self, task: Task, text: str) -> Verdict:
        answer = final_answer(text)
        if not answer:
            return Verdict.wrong_format("expected an answer after the reasoning; found none")
        with self._lock:
            try:
                reply = asked_twice(partial(self._reply, request(task, text, answer)), self.close)
            except (WorkerDied, OSError) as death:
                return Verdict.infrastructure_failure(f"{self._command[-1]}: {death}")
            if reply is None:
                self.close()
                return Verdict.infrastructure_failure(f"{self._command[-1]}: no reply within {self._deadline:g} s")
        return self._verdict(reply)

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _reply(self, question: Mapping[str, Any]) -> Reply | None:
        self._worker = self._worker or Worker.started(self._command)
        return self._worker.ask(question, self._deadline)

    def _verdict(self, reply: Reply) -> Verdict:
        if "error" in reply:
            return Verdict.infrastructure_failure(f"{self._command[-1]} raised {reply['error']}")
        if reply["score"] is None:
            return Verdict.infrastructure_failure(f"{self._command[-1]} returned None: no reward for this sample")
        return Verdict.scored(reply["score"], reply["parts"])


def request(task: Task, text: str, answer: str) -> dict[str, Any]:
    """The request to the shim. `columns` are the row's fields other than the prompt and the agent."""
    columns = {
        name: value for name, value in task.metadata.items() if name not in ("responses_create_params", "agent_ref")
    }
    reasoning = text.rpartition("</think>")[0].rpartition("<think>")[2].strip()
    return {"messages": list(task.messages), "answer": answer, "reasoning": reasoning, "columns": columns}
