"""The environment loop: many episodes at once, each of which goes on as soon as its environment has answered.

A sample of a domain with an environment is generated turn by turn: the model's turn as raw ids, then the environment's
reply, encoded by the chat template, then the model again. Samples of other domains are complete after one turn.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Self

from transformers import PreTrainedTokenizerBase

from cascade_rl.engine.cluster.node import Node
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome, Request, Rollout
from cascade_rl.rl_stages.core.episode_rollout import EpisodeRollout
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import UNFINISHED, Verdict
from cascade_rl.rl_stages.data.open_reasoning import never_answers
from cascade_rl.rl_stages.data.tokenizer import answer_text, encode_reply
from cascade_rl.rl_stages.environments.deadline_pool import DeadlinePool
from cascade_rl.rl_stages.environments.environment import End, Environment, Episode
from cascade_rl.rl_stages.scoring.turns import join
from cascade_rl.rl_stages.tasks.domains import domain_named


class Play:
    """One sample's episode, from its first request to its end."""

    def __init__(self, task: Task, request: Request, host: Host, tokenizer: PreTrainedTokenizerBase):
        self.task, self.request, self.host, self.tokenizer = task, request, host, tokenizer
        self.turns: list[Rollout] = []
        self.episode: Episode | None = None
        self.failed = False

    def react(self, turn: Rollout) -> Request | EpisodeRollout:
        """The next request, or the end of the episode. May block. UserError for a fault that all samples share."""
        self.turns.append(turn)
        try:
            return self._following(turn)
        except UserError:
            raise
        except Exception as error:  # any fault of the environment
            return self.fail(error)
        finally:
            if self.failed:  # here, or on the deadline while this ran
                self.abandon()

    def fail(self, error: BaseException) -> EpisodeRollout:
        """The end of a sample whose environment failed, or missed its deadline while `react` still runs."""
        self.failed = True
        verdict = Verdict.infrastructure_failure(f"environment, turn {len(self.turns)}: {error!r}")
        return _whole(self.turns, verdict, "abort")

    def close(self) -> None:
        episode, self.episode = self.episode, None
        if episode:
            episode.close()

    def abandon(self) -> None:
        """Closes an episode that already counts as failed."""
        with suppress(Exception):
            self.close()

    def _following(self, turn: Rollout) -> Request | EpisodeRollout:
        if turn.finish == "length":
            return self._truncated("reached max_new_tokens or the limit of all tokens")
        text = answer_text(self.tokenizer, turn)
        if never_answers(self.tokenizer, turn.prompt_ids, text):
            return self._end(Verdict.wrong_format(UNFINISHED), "stop")
        if self.episode is None:
            self.episode = self.host.environment.start(self.task)
        answer = self.episode.step(text)
        if isinstance(answer, End):
            return self._end(answer.verdict, "stop")
        if len(self.turns) == self.request.sampling.max_turns:
            return self._truncated(f"reached max_turns = {self.request.sampling.max_turns}")
        reply = encode_reply(self.tokenizer, answer.messages, self.task.thinking)
        return self._next([*turn.prompt_ids.tolist(), *turn.token_ids.tolist(), *reply])

    def _next(self, prompt_ids: list[int]) -> Request | EpisodeRollout:
        sampling = self.request.sampling
        unused = sampling.max_new_tokens - sum(len(turn.token_ids) for turn in self.turns)
        assert sampling.max_total_tokens is not None
        room = min(unused, sampling.max_total_tokens - len(prompt_ids))
        if room < 1:
            return self._truncated("no room for another turn in max_new_tokens or the limit of all tokens")
        seed = zlib.crc32(f"{self.request.seed}/{len(self.turns)}".encode())
        return Request(self.request.id, tuple(prompt_ids), replace(sampling, max_new_tokens=room), seed)

    def _truncated(self, detail: str) -> EpisodeRollout:
        return self._end(Verdict(Outcome.TRUNCATED, 0.0, detail=detail), "length")

    def _end(self, verdict: Verdict, finish: str) -> EpisodeRollout:
        self.close()
        return _whole(self.turns, verdict, finish)


@dataclass(frozen=True)
class Host:
    """A running environment and the threads for its steps."""

    environment: Environment
    pool: DeadlinePool

    @classmethod
    def of(cls, domain: str, others: Sequence[Node]) -> Host | None:
        """None for a domain without an environment."""
        make = domain_named(domain).on_nodes(others).environment
        if make is None:
            return None
        environment = make()
        return cls(environment, DeadlinePool(environment.concurrency, environment.step_seconds, domain))

    def follow(self, play: Play, turn: Rollout) -> Future[Request | Rollout]:
        following = Future[Request | Rollout]()
        self.pool.submit(partial(play.react, turn)).add_done_callback(partial(self._followed, play, following))
        return following

    def _followed(self, play: Play, following: Future[Request | Rollout], reaction: Future) -> None:
        error = reaction.exception()
        if isinstance(error, TimeoutError):
            following.set_result(play.fail(error))
            self.pool.submit(play.abandon)
        elif error:
            following.set_exception(error)
        else:
            following.set_result(reaction.result())

    def close(self) -> None:
        self.pool.close()
        self.environment.close()


class Episodes:
    """The environments of a stage's domains, each made when first needed, and running on the nodes `others` too if it
    can. A context manager."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, others: Sequence[Node] = ()) -> None:
        self.tokenizer, self.others = tokenizer, others
        self.hosts: dict[str, Host | None] = {}
        self.plays: dict[str, Play] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for play in list(self.plays.values()):  # a thread that samples ahead may still take some out
            play.abandon()
        for host in filter(None, self.hosts.values()):
            host.close()

    def host(self, domain: str) -> Host | None:
        """The domain's environment, which is closed with this; None if it has none."""
        if domain not in self.hosts:
            self.hosts[domain] = Host.of(domain, self.others)
        return self.hosts[domain]

    def begin(self, task: Task, requests: Iterable[Request]) -> None:
        """Registers samples of `task` before they are generated. Their requests have max_total_tokens."""
        if host := self.host(task.domain):
            for request in requests:
                play = Play(task, request, host, self.tokenizer)
                self.plays[request.id] = play

    def follow(self, turn: Rollout) -> Future[Request | Rollout] | None:
        """What follows a turn, once its environment has answered; None if the turn is a complete sample."""
        play = self.plays.get(turn.id)
        if play is None or isinstance(turn, EpisodeRollout):
            self.plays.pop(turn.id, None)
            return None
        return play.host.follow(play, turn)


def _whole(turns: Sequence[Rollout], verdict: Verdict, finish: str) -> EpisodeRollout:
    joined = join(turns)
    values = {field.name: getattr(joined, field.name) for field in fields(Rollout)} | {"finish": finish}
    return EpisodeRollout(**values, verdict=verdict)
