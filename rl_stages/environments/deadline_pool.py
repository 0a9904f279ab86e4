"""A thread pool whose jobs have a deadline: a job that hangs delays no other job."""

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
    """A pool of `threads` daemon threads. A job still running `seconds` after it began is abandoned.

    A thread cannot be stopped. That of an abandoned job is replaced at once, and ends when the job returns.
    """

    def __init__(self, threads: int, seconds: float, name: str) -> None:
        self.threads, self.seconds, self.name = threads, seconds, name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        for _ in range(threads):
            self._start_thread()

    def submit[T](self, work: Callable[[], T]) -> Future[T]:
        """A future of what `work()` returns or raises; TimeoutError if it misses the deadline."""
        job = _Job(work, Future())
        self._jobs.put(job)
        return job.future

    def close(self) -> None:
        """Lets the threads end after the submitted jobs, without waiting for them."""
        for _ in range(self.threads):
            self._jobs.put(None)

    def _start_thread(self) -> None:
        Thread(target=self._run, name=self.name, daemon=True).start()

    def _run(self) -> None:
        while job := self._jobs.get():
            if not self._done_in_time(job):
                return  # another thread has replaced this one

    def _done_in_time(self, job: _Job) -> bool:
        timer = Timer(self.seconds, self._give_up, [job])
        timer.daemon = True
        timer.start()
        outcome: Any = None
        failure: BaseException | None = None
        try:
            outcome = job.work()
        except Exception as error:  # the job may raise anything; the caller gets it from the future
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
