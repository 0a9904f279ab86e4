"""Plays a test-time method on many tasks at once: all that the methods ask for is sampled side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling
from cascade_rl.engine.rollout.client import RolloutEngine
from cascade_rl.launchers.evaluate.test_time.methods import Method
from cascade_rl.launchers.evaluate.test_time.steps import Ask, Grade, Reply, RunTests, Steps
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import final_answer
from cascade_rl.rl_stages.data.tokenizer import answer_text, encode_prompt
from cascade_rl.rl_stages.rewards.swe.grading import run_tests
from cascade_rl.rl_stages.sandbox import Sandbox, SandboxFailure, cores
from cascade_rl.rl_stages.scoring.answering import requests_for
from cascade_rl.rl_stages.scoring.judge import Answer, Judge


@dataclass
class Game:
    """One play of one task.

    step     how many steps it has taken; part of the names, and so of the seeds, of what it asks next
    replies  those to the asks of the running step, as far as they are there
    spent    tokens of all replies
    """

    task: Task
    name: str
    steps: Steps
    step: int = 0
    replies: list[dict[int, Rollout]] = field(default_factory=list)
    missing: int = 0
    spent: int = 0


@dataclass(frozen=True)
class Played:
    """What a method handed in, with its verdict; `why` says why there is nothing. `spent`: tokens of all replies."""

    task: Task
    number: int
    rollout: Rollout | None = None
    answer: Answer | None = None
    spent: int = 0
    why: str = ""

    @property
    def unscored(self) -> str:
        """Why there is no score; empty if there is one."""
        return self.why or (
            "" if self.answer is None or self.answer.verdict.score is not None else self.answer.verdict.detail
        )


@dataclass
class Playing:
    """`plays` games for each task. `at_once`: games that run side by side."""

    engine: RolloutEngine
    judge: Judge
    tokenizer: PreTrainedTokenizerBase
    sampling: Sampling
    method: Method
    plays: int
    at_once: int
    games: dict[str, Game] = field(default_factory=dict)
    exits: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def _sandbox(self) -> Sandbox:
        return self.exits.enter_context(Sandbox(cores()))

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return self.exits.enter_context(ThreadPoolExecutor(cores(), thread_name_prefix="tests"))

    def close(self) -> None:
        """Ends the boxes in which a method ran tests."""
        self.exits.close()

    def __call__(self, tasks: Iterable[Task]) -> Iterator[Played]:
        """The results in the order in which they are known. The ids of the tasks must differ."""
        waiting = ((task, number) for task in tasks for number in range(self.plays))
        yield from self._fill(waiting)
        for rollout in self.engine.results():
            name, ask, place = rollout.id.rsplit("/", 2)
            game = self.games[name.rpartition("/")[0]]
            game.replies[int(ask)][int(place)] = rollout
            game.missing -= 1
            game.spent += len(rollout.token_ids)
            if not game.missing:
                yield from self._advance(game, [self._replies(group) for group in game.replies])
                yield from self._fill(waiting)

    def _fill(self, waiting: Iterator[tuple[Task, int]]) -> Iterator[Played]:
        while len(self.games) < self.at_once and (following := next(waiting, None)):
            task, number = following
            game = Game(task, f"{task.id}/{number}", self.method.begin(task))
            self.games[game.name] = game
            yield from self._advance(game, None)

    def _advance(self, game: Game, found: object) -> Iterator[Played]:
        """Until the game waits for the model again, or ends."""
        try:
            while not game.missing:
                step = game.steps.send(found)
                found = self._answered(game, step)
        except StopIteration as end:
            yield self._ended(game, end.value)
        except (UserError, SandboxFailure) as error:
            yield self._closed(game, why=str(error))

    def _answered(self, game: Game, step: Sequence[Ask] | Grade | RunTests) -> object:
        if isinstance(step, Grade):
            return self._graded(game.task, step.replies)
        if isinstance(step, RunTests):
            return list(self._threads.map(lambda one: run_tests(one, self._sandbox), step.repositories))
        return self._ask(game, step)

    def _ask(self, game: Game, asks: Sequence[Ask]) -> list[list[Reply]]:
        """The answer to no asks at all."""
        requests: list[Request] = []
        for number, ask in enumerate(asks):
            names = (f"{game.name}/{game.step}/{number}/{place}" for place in range(ask.count))
            requests += requests_for(self._prompt(game.task, ask), self.sampling, names)
        game.step += 1
        game.replies, game.missing = [{} for _ in asks], len(requests)
        if requests:
            self.engine.submit(requests)
        return [[] for _ in asks]

    def _prompt(self, task: Task, ask: Ask) -> tuple[int, ...]:
        prompt = tuple(encode_prompt(self.tokenizer, ask.messages, task.tools, task.thinking))
        assert self.sampling.max_total_tokens is not None
        room = self.sampling.max_total_tokens - self.sampling.max_new_tokens
        if len(prompt) > room:
            raise UserError(
                f"expected a prompt of at most {room} tokens; found one of {len(prompt)}: raise --max-model-len"
            )
        return prompt

    def _replies(self, group: dict[int, Rollout]) -> list[Reply]:
        return [self._reply(group[place]) for place in sorted(group)]

    def _reply(self, rollout: Rollout) -> Reply:
        text = answer_text(self.tokenizer, rollout)
        return Reply(rollout, text, final_answer(text) or "" if rollout.finish == "stop" else "")

    def _graded(self, task: Task, replies: Sequence[Reply]) -> list[object]:
        if not replies:
            return []
        [answers] = self.judge([task], [[reply.rollout for reply in replies]])
        return [answer.verdict for answer in answers]

    def _ended(self, game: Game, reply: Reply) -> Played:
        [[answer]] = self.judge([game.task], [[reply.rollout]])
        return self._closed(game, reply.rollout, answer)

    def _closed(
        self, game: Game, rollout: Rollout | None = None, answer: Answer | None = None, why: str = ""
    ) -> Played:
        del self.games[game.name]
        return Played(game.task, int(game.name.rpartition("/")[2]), rollout, answer, game.spent, why)
