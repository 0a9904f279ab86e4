"""Verdicts on finished samples: text from ids, truncation from the finish, the rest from the domain's verifier."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Self

from transformers import PreTrainedTokenizerBase

from cascade_rl.engine.sample import Outcome, Rollout
from cascade_rl.rl_stages.domains import domain_named
from cascade_rl.rl_stages.task import Task
from cascade_rl.rl_stages.verdict import GroupVerifier, Verdict, Verifier

Answer = tuple[str, Verdict]


class Judge:
    """One verifier per domain, made when first needed, with as many threads as it takes; a context manager."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
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
        """Text and verdict of each answer, in the order given, whatever ends first.

        An answer that did not end is not looked at: score 0.
        """
        waiting = [self._submit(task, rollouts) for task, rollouts in zip(tasks, groups, strict=True)]
        return [collect() for collect in waiting]

    def _submit(self, task: Task, rollouts: Sequence[Rollout]) -> Callable[[], list[Answer]]:
        ended = [rollout.finish == "stop" for rollout in rollouts]
        texts = [self._text(rollout) for rollout in rollouts]
        finished = [text for text, whole in zip(texts, ended, strict=True) if whole]
        verdicts = self._verdicts(task, finished) if finished else iter(())
        truncated = Verdict(Outcome.TRUNCATED, 0.0, detail="reached max_new_tokens")
        return lambda: [
            (text, next(verdicts) if whole else truncated) for text, whole in zip(texts, ended, strict=True)
        ]

    def _text(self, rollout: Rollout) -> str:
        ended = rollout.finish == "stop"
        return str(self.tokenizer.decode(rollout.token_ids[:-1] if ended else rollout.token_ids))

    def _verdicts(self, task: Task, texts: list[str]) -> Iterator[Verdict]:
        """Starts the work at once; waits for each verdict when it is taken."""
        verifier = self._verifier(task.domain)
        pool = self.pools[task.domain]
        if isinstance(verifier, GroupVerifier):
            return _of(pool.submit(verifier.rank, task, texts).result)
        return pool.map(partial(verifier, task), texts)

    def _verifier(self, domain: str) -> Verifier | GroupVerifier:
        if domain not in self.verifiers:
            self.verifiers[domain] = verifier = domain_named(domain).verifier()
            self.pools[domain] = ThreadPoolExecutor(verifier.concurrency, thread_name_prefix=domain)
        return self.verifiers[domain]


def _of(verdicts: Callable[[], list[Verdict]]) -> Iterator[Verdict]:
    yield from verdicts()
