"""Verdicts on finished samples: from the environment for an episode, from the finish reason for a truncated answer, and
from the domain's verifier for everything else."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Self

from transformers import PreTrainedTokenizerBase

from cascade_rl.engine.cluster.node import Node
from cascade_rl.engine.core.rollouts import Outcome, Rollout
from cascade_rl.rl_stages.core.episode_rollout import EpisodeRollout
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import GroupVerifier, Verdict, Verifier
from cascade_rl.rl_stages.data.tokenizer import answer_text
from cascade_rl.rl_stages.run.ledger import Ledger
from cascade_rl.rl_stages.tasks.domains import domain_named


class Answer(NamedTuple):
    """The text of a sample and its verdict."""

    text: str
    verdict: Verdict


MakeVerifier = Callable[[], Verifier | GroupVerifier]


class Judge:
    """One verifier per domain, made when first needed, with as many threads as its concurrency. A context manager.

    makers  domain -> maker of a verifier that replaces the domain's own
    ledger  stores verdicts as they come, and has those of an attempt that was killed
    others  the other nodes of the job, for verifiers that can use them
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        makers: Mapping[str, MakeVerifier] | None = None,
        ledger: Ledger | None = None,
        others: Sequence[Node] = (),
    ) -> None:
        self.tokenizer, self.others = tokenizer, others
        self.makers = makers or {}
        self.ledger = ledger
        self.verifiers: dict[str, Verifier | GroupVerifier] = {}
        self.pools: dict[str, ThreadPoolExecutor] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for verifier in self.verifiers.values():
            verifier.close()
        for pool in self.pools.values():
            pool.shutdown()

    def __call__(self, tasks: Sequence[Task], groups: Sequence[Sequence[Rollout]]) -> list[list[Answer]]:
        """Text and verdict of each answer, in the order given.

        A truncated answer is not verified: its score is 0. An episode keeps the verdict of its environment.
        """
        waiting = [self._submit(task, rollouts) for task, rollouts in zip(tasks, groups, strict=True)]
        return [collect() for collect in waiting]

    def _submit(self, task: Task, rollouts: Sequence[Rollout]) -> Callable[[], list[Answer]]:
        known = [_known_verdict(rollout) for rollout in rollouts]
        texts = [answer_text(self.tokenizer, rollout) for rollout in rollouts]
        unknown = zip(rollouts, texts, known, strict=True)
        asked = [(rollout.id, text) for rollout, text, verdict in unknown if verdict is None]
        verdicts = self._verdicts(task, asked) if asked else iter(())
        return lambda: [Answer(text, verdict or next(verdicts)) for text, verdict in zip(texts, known, strict=True)]

    def _verdicts(self, task: Task, asked: Sequence[tuple[str, str]]) -> Iterator[Verdict]:
        """Verdicts on (sample id, text) pairs. Starts all work at once; waits for a verdict when it is taken."""
        verifier = self.verifier(task.domain)
        pool = self.pools[task.domain]
        if isinstance(verifier, GroupVerifier):
            return _of(pool.submit(self._recorded, partial(verifier.rank, task), asked).result)
        check = partial(verifier, task)
        return pool.map(lambda one: self._recorded(lambda texts: [check(texts[0])], [one])[0], asked)

    def _recorded(self, check: Callable[[list[str]], list[Verdict]], asked: Sequence[tuple[str, str]]) -> list[Verdict]:
        """The verdicts in the ledger, else those of `check`, which the ledger then stores."""
        names = [name for name, _ in asked]
        if self.ledger and (known := self.ledger.verdicts(names)):
            return known
        verdicts = check([text for _, text in asked])
        if self.ledger:
            self.ledger.judged(dict(zip(names, verdicts, strict=True)))
        return verdicts

    def verifier(self, domain: str) -> Verifier | GroupVerifier:
        """The domain's verifier, which is closed with the judge."""
        if domain not in self.verifiers:
            make = self.makers.get(domain) or domain_named(domain).on_nodes(self.others).verifier
            if make is None:
                raise TypeError(f"expected episodes of {domain!r}, judged by its environment; found single answers")
            self.verifiers[domain] = verifier = make()
            self.pools[domain] = ThreadPoolExecutor(verifier.concurrency, thread_name_prefix=domain)
        return self.verifiers[domain]


def _known_verdict(rollout: Rollout) -> Verdict | None:
    """The verdict on a sample that needs no verifier; None for the others."""
    if isinstance(rollout, EpisodeRollout):
        return rollout.verdict
    if rollout.finish == "stop":
        return None
    return Verdict(Outcome.TRUNCATED, 0.0, detail="reached max_new_tokens")


def _of(verdicts: Callable[[], list[Verdict]]) -> Iterator[Verdict]:
    yield from verdicts()
