"""Writes each step to the terminal, the metrics file, the event file, the trackers and the sample file."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Self

from cascade_rl.engine.rollout.protocol import Stall
from cascade_rl.rl_stages.run.progress import Phase, Progress
from cascade_rl.rl_stages.run.run_folder import StageFolder
from cascade_rl.rl_stages.run.sample_record import SampleRecord, write_samples
from cascade_rl.rl_stages.run.trackers.tensorboard import TensorBoard
from cascade_rl.rl_stages.run.trackers.told_once import ToldOnce


class StepLog:
    """Rank 0's log of a stage; a context manager.

    A step's samples are written while the next step runs, which takes as long as many a phase for millions of tokens.
    `settle` comes before whatever must not outlive them.

    seconds               of the step so far, by phase
    reward_overlapped_s   seconds by which the reward phase would be longer, had no answer been scored during generation
    stall                 how long the engines stood still for new weights while they sampled (`stalled`)
    failed                whether an exception ends the attempt, as trackers are told
    """

    def __init__(self, folder: StageFolder) -> None:
        self.folder, self.exits = folder, ExitStack()
        self.seconds: dict[str, float] = {}
        self.reward_overlapped_s, self.failed = 0.0, False
        self.stall: dict[str, float] = {}
        self.board, self.trackers = TensorBoard(self.folder), list[ToldOnce]()
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        self.exits.callback(self._close_trackers)
        self._writer = self.exits.enter_context(ThreadPoolExecutor(1, "samples"))
        self.exits.callback(self.settle)
        self.progress = self.exits.enter_context(Progress(self.folder.label, self.folder.config.steps))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.failed = self.failed or kind is not None
        self.exits.close()

    def report_to(self, trackers: Sequence[ToldOnce]) -> None:
        """Tells these too from now on, and at once the steps that they lack."""
        self.trackers += trackers
        finished = [row for row in self.folder.metrics.rows() if row["step"] <= self.folder.last_step()]
        for tracker in trackers:
            for row in finished:
                tracker.log("step", row["step"], {name: value for name, value in row.items() if name != "step"})

    @contextmanager
    def phase(self, name: str, total: int = 0) -> Iterator[Phase]:
        """Times a phase of the step, and shows its count on the terminal."""
        started = time.perf_counter()
        with self.progress.phase(name, total) as phase:
            yield phase
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def warn(self, step: int, detail: str) -> None:
        """Says that something is wrong with a step, counting from 1, and keeps it for the report."""
        self.progress.say(f"warning: step {step}: {detail}")
        self.folder.record_event("warning", step=step, detail=detail)

    def stalled(self, stalls: Sequence[Stall]) -> None:
        """Engines with samples in flight made no step while they took new weights."""
        if longest := max((stall for stall in stalls if stall.running), key=lambda stall: stall.seconds, default=None):
            running = sum(stall.running for stall in stalls)
            told = {"ms": 1e3 * longest.seconds, "decode_steps": longest.steps, "samples": float(running)}
            self.stall = {f"stall_{name}": value for name, value in told.items()}

    def step(self, step: int, metrics: Mapping[str, float], tokens: int, records: Sequence[SampleRecord]) -> None:
        """Ends step `step`, counting from 1, and resets the phase times. Raises as `settle`."""
        self.settle()
        if records:
            self._writing = self._writer.submit(write_samples, self.folder.rollouts(step), records)
        self.folder.record_step(step, metrics, self.seconds, tokens, self.reward_overlapped_s, self.stall)
        self._tell("step", step, {**metrics, **self._speed(tokens), **self.stall})
        self.progress.step(step, metrics, self.seconds, tokens, self.reward_overlapped_s)
        self.seconds, self.reward_overlapped_s, self.stall = {}, 0.0, {}

    def heldout(self, when: str, scores: Mapping[str, float]) -> None:
        """Tells the held-out scores "before" and "after" the stage."""
        self._tell_frame("heldout", when, scores, [", ".join(f"{name} {score:.3f}" for name, score in scores.items())])

    def benchmarks(self, when: str, numbers: Mapping[str, float], lines: Iterable[str]) -> None:
        """Tells the numbers of benchmarks "before" and "after" the stage; `lines` say them in words."""
        self._tell_frame("benchmark", when, numbers, lines)

    def settle(self) -> None:
        """Returns when the samples of all steps so far are on disk. Raises OSError if they could not be written."""
        if self._writing:
            writing, self._writing = self._writing, None
            writing.result()

    def _tell(self, series: str, step: int, values: Mapping[str, float]) -> None:
        self.board.log(step, values)
        for tracker in self.trackers:
            tracker.log(series, step, values)

    def _tell_frame(self, series: str, when: str, numbers: Mapping[str, float], lines: Iterable[str]) -> None:
        for line in lines:
            self.progress.say(f"{when}: {line}")
        step = 0 if when == "before" else self.folder.last_step()
        self._tell(series, step, {f"{series}/{name}": number for name, number in numbers.items()})

    def _close_trackers(self) -> None:
        self.board.close(self.failed)
        for tracker in self.trackers:
            tracker.close(self.failed)

    def _speed(self, tokens: int) -> dict[str, float]:
        phases = {f"seconds/{name}": spent for name, spent in self.seconds.items()}
        return {"tokens_per_second": tokens / sum(self.seconds.values()), **phases}
