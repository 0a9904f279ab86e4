"""Threads whose jobs have a deadline: one that hangs costs its own job, and no other."""

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread, Timer
from typing import Any


@dataclass
class _Job:
    work: Callable[[], Any]
    future: Future[Any]


class DeadlinePool:
    """`threads` daemon threads; a job that is not done `seconds` after it began is given up.

    A thread cannot be stopped: that of a job that was given up is replaced at once, and ends when its job does.
    """

    def __init__(self, threads: int, seconds: float, name: str) -> None:
        self.threads, self.seconds, self.name = threads, seconds, name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        for _ in range(threads):
            self._start_thread()

    def submit[T](self, work: Callable[[], T]) -> Future[T]:
        """What `work()` returns or raises; TimeoutError where it misses the deadline."""
        job = _Job(work, Future())
        self._jobs.put(job)
        return job.future

    def close(self) -> None:
        """Threads end after the jobs that were submitted. It does not wait for them."""
        for _ in range(self.threads):
            self._jobs.put(None)

    def _start_thread(self) -> None:
        Thread(target=self._run, name=self.name, daemon=True).start()

    def _run(self) -> None:
        while job := self._jobs.get():
            if not self._done_in_time(job):
                return  # another thread has taken this one's place

    def _done_in_time(self, job: _Job) -> bool:
        timer = Timer(self.seconds, self._give_up, [job])
        timer.daemon = True
        timer.start()
        outcome: Any = None
        failure: BaseException | None = None
        try:
            outcome = job.work()
        except Exception as error:  # the border to code that is not ours: the caller gets it from the future
            failure = error
        timer.cancel()
        try:
            job.future.set_exception(failure) if failure else job.future.set_result(outcome)
        except InvalidStateError:
            return False
        return True

    def _give_up(self, job: _Job) -> None:
        with suppress(InvalidStateError):
            job.future.set_exception(TimeoutError(f"not done after {self.seconds:g} s"))
            self._start_thread()
