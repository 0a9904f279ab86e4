"""Verdicts of reward code that `shim.py` runs in separate processes, which are killed at a deadline."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import LifoQueue
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.cluster.rank_environment import SAFE_PATH
from cascade_rl.engine.core import parent_death
from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.deadline_worker import START_SECONDS, Reply, Worker, WorkerDied, asked_twice

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

DEADLINE_SECONDS = 30.0
BATCH_DEADLINE_SECONDS = 120.0
PROCESSES = 8  # of each reward; one starts when those before it are busy
TRACEBACK_LINES = 20
SHIM = (str(Path(__file__).with_name("shim.py")), str(Path(parent_death.__file__)))  # and its first argument


class ProcessVerifier:
    """The scores that the code gives to the answers to a prompt, as one batch. They may have any range.

    whole   the code reads the whole completion with its reasoning, otherwise what follows the reasoning

    `None`, an exception, no reply within the deadline and a second death of the process say nothing about an answer.
    They are infrastructure failures, so that the sample is masked. If a batch fails, its answers are asked about one by
    one. Safe to call from several threads. A process starts with the first call that needs it.
    """

    concurrency = PROCESSES
    scores_truncated = False

    def __init__(self, command: Sequence[str], *, whole: bool = False, seconds: float = DEADLINE_SECONDS) -> None:
        self._processes = [RewardProcess(command, seconds) for _ in range(PROCESSES)]
        self._idle: LifoQueue[RewardProcess] = LifoQueue()
        self._whole = whole
        for process in self._processes:
            self._idle.put(process)

    def __call__(self, task: Task, text: str) -> Verdict:
        return self.rank(task, [text])[0]

    def rank(self, task: Task, texts: Sequence[str]) -> list[Verdict]:
        """See `GroupVerifier`."""
        answers = {place: self._read(text) for place, text in enumerate(texts)}
        asked = {place: answer for place, answer in answers.items() if answer is not None}
        process = self._idle.get()
        try:
            replies = process.replies(task, list(asked.values())) if asked else []
        finally:
            self._idle.put(process)
        verdicts = dict(zip(asked, map(process.verdict, replies), strict=True))
        return [verdicts.get(place) or Verdict.wrong_format(NO_ANSWER) for place in answers]

    def close(self) -> None:
        """Ends the processes, if there are any."""
        for process in self._processes:
            process.close()

    def _read(self, text: str) -> dict[str, str] | None:
        """What the code gets of an answer; None for none."""
        answer = final_answer(text)
        if not answer and not self._whole:
            return None
        read = text if self._whole else answer
        return {"text": read or "", "answer": answer or "", "reasoning": reasoning_of(text)}


NO_ANSWER = "expected an answer after the reasoning; found none"


class RewardProcess:
    """One process of the code. Only one thread at a time may use it."""

    def __init__(self, command: Sequence[str], seconds: float) -> None:
        self._command, self._seconds = command, seconds
        self.worker: Worker | None = None

    def replies(self, task: Task, answers: Sequence[Mapping[str, str]]) -> list[Reply]:
        """One reply for each answer."""
        request = {"messages": list(task.messages), "answers": list(answers), "columns": columns_of(task)}
        seconds = self._seconds if len(answers) == 1 else max(self._seconds, BATCH_DEADLINE_SECONDS)
        try:
            reply = asked_twice(partial(self._ask, request, seconds), self.close)
            failure = f"no reply within {seconds:g} s" if reply is None else ""
        except (WorkerDied, OSError) as death:
            reply, failure = None, str(death)
        if reply is not None:
            found: list[Reply] = reply["replies"]
            return found
        self.close()
        if len(answers) == 1:
            return [{"failure": failure}]
        return [reply for answer in answers for reply in self.replies(task, [answer])]

    def verdict(self, reply: Reply) -> Verdict:
        name = self._command[-1]
        if "failure" in reply:
            return Verdict.infrastructure_failure(f"{name}: {reply['failure']}")
        if "error" in reply:
            return Verdict.infrastructure_failure(f"{name} raised {reply['error']}")
        if reply["score"] is None:
            return Verdict.infrastructure_failure(f"{name} returned None: no reward for this sample")
        return Verdict.scored(reply["score"], reply["parts"])

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self.worker is not None:
            self.worker.kill()
            self.worker = None

    def _ask(self, question: Mapping[str, Any], seconds: float) -> Reply | None:
        self.worker = self.worker or Worker.started(self._command)
        return self.worker.ask(question, seconds)


def prove(command: Sequence[str]) -> None:
    """Starts the code once and asks it nothing. UserError with its own words if it cannot be imported or called."""
    name = command[-1]
    try:
        told = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=os.environ | SAFE_PATH, check=False,
            timeout=START_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UserError(f"{name}: expected a reward that is imported within {START_SECONDS:g} s; it was not") from None
    if told.returncode:
        words = "\n".join(f"  {line}" for line in told.stderr.splitlines()[-TRACEBACK_LINES:])
        raise UserError(f"{name}: expected a reward that can be imported and called; it said\n{words}")


def columns_of(task: Task) -> dict[str, Any]:
    """The row's fields other than the prompt and the agent."""
    return {
        name: value for name, value in task.metadata.items() if name not in ("responses_create_params", "agent_ref")
    }


def reasoning_of(text: str) -> str:
    return text.rpartition("</think>")[0].rpartition("<think>")[2].strip()
