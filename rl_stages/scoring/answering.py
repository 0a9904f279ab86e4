"""A model's answers to each of many tasks, sampled and judged at the same time."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling
from cascade_rl.engine.rollout.client import RolloutEngine
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.tokenizer import encode_prompt
from cascade_rl.rl_stages.scoring.episodes import Episodes
from cascade_rl.rl_stages.scoring.judge import Answer, Judge


class Answered(NamedTuple):
    """A task's samples with their texts and verdicts, or why it has none."""

    task: Task
    rollouts: Sequence[Rollout] = ()
    answers: Sequence[Answer] = ()
    why: str = ""

    @property
    def unscored(self) -> str:
        """Why an answer, or the task, has no score; empty if all have one."""
        failed = [verdict.detail for _, verdict in self.answers if verdict.score is None]
        told = f"expected a score of each answer; found {len(failed)} without one: {failed[0]}" if failed else ""
        return self.why or told

    @property
    def scores(self) -> list[float]:
        return [verdict.score for _, verdict in self.answers if verdict.score is not None]


Group = tuple[Task, list[Rollout]]


@dataclass
class Answering:
    """Samples `answers` answers to each task.

    in_flight  requests that the engines hold at once; more tasks follow as answers arrive
    longest    tokens of prompt and answer together
    """

    engine: RolloutEngine
    judge: Judge
    episodes: Episodes
    tokenizer: PreTrainedTokenizerBase
    sampling: Sampling
    answers: int
    in_flight: int
    longest: int
    waiting: dict[str, Group] = field(default_factory=dict)
    running: int = 0

    def __call__(self, tasks: Iterable[Task]) -> Iterator[Answered]:
        """The answers to each task, in the order in which they are known. The ids of the tasks must differ.

        A task has none if its prompt leaves no room for an answer. An answer has no score if the infrastructure failed.
        """
        finished: list[Group] = []
        with ThreadPoolExecutor(1, thread_name_prefix="judging") as thread:
            scoring: Future[list[Answered]] | None = None
            for found in self._sampled(iter(tasks)):
                if isinstance(found, Answered):
                    yield found
                    continue
                finished.append(found)
                if scoring is None or scoring.done():
                    yield from scoring.result() if scoring else ()
                    scoring, finished = thread.submit(self._scored, finished), []
            yield from scoring.result() if scoring else ()
            yield from self._scored(finished)

    def _sampled(self, tasks: Iterator[Task]) -> Iterator[Group | Answered]:
        """The answers to each task, and the tasks that cannot be sampled."""
        yield from self._fill(tasks)
        for turn in self.engine.results():
            if following := self.episodes.follow(turn):
                self.engine.expect(turn.id, following)
                continue
            name = turn.id.rpartition("/")[0]
            self.waiting[name][1].append(turn)
            self.running -= 1
            if len(self.waiting[name][1]) == self.answers:
                yield self.waiting.pop(name)
            yield from self._fill(tasks)

    def _fill(self, tasks: Iterator[Task]) -> Iterator[Answered]:
        """Submits tasks until the engines have enough to do; yields those whose prompt does not fit."""
        while self.running < self.in_flight and (task := next(tasks, None)):
            try:
                requests = self._requests(task)
            except UserError as error:
                yield Answered(task, why=str(error))
                continue
            self.waiting[task.id] = (task, [])
            self.running += self.answers
            self.episodes.begin(task, requests)
            self.engine.submit(requests)

    def _requests(self, task: Task) -> list[Request]:
        prompt = tuple(encode_prompt(self.tokenizer, task.messages, task.tools, task.thinking))
        room = self.longest - self.sampling.max_new_tokens
        if len(prompt) > room:
            raise UserError(f"expected a prompt of at most {room} tokens; found one of {len(prompt)}")
        return requests_for(prompt, self.sampling, [f"{task.id}/{number}" for number in range(self.answers)])

    def _scored(self, groups: Sequence[Group]) -> list[Answered]:
        judged = self.judge([task for task, _ in groups], [rollouts for _, rollouts in groups])
        return [Answered(*group, answers) for group, answers in zip(groups, judged, strict=True)]


def requests_for(prompt: tuple[int, ...], sampling: Sampling, names: Iterable[str]) -> list[Request]:
    """A request of each name, which also decides its seed."""
    return [Request(name, prompt, sampling, zlib.crc32(name.encode())) for name in names]
