"""Verdicts on finished samples: from the environment for an episode, from the domain's verifier for an answer. One that
was truncated, or never leaves its reasoning, has a verdict without it, unless the verifier scores such answers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Self

from transformers import PreTrainedTokenizerBase

from cascade_rl.engine.cluster.node import Node
from cascade_rl.engine.core.rollouts import Outcome, Rollout
from cascade_rl.rl_stages.core.episode_rollout import EpisodeRollout
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import UNFINISHED, GroupVerifier, Verdict, Verifier
from cascade_rl.rl_stages.data.open_reasoning import never_answers
from cascade_rl.rl_stages.data.tokenizer import answer_text
from cascade_rl.rl_stages.run.ledger import Ledger
from cascade_rl.rl_stages.scoring.busy_time import BusyTime
from cascade_rl.rl_stages.scoring.pending_group import Answer, PendingGroup
from cascade_rl.rl_stages.tasks.domains import domain_named, is_third_party

GRACE_SECONDS = 10.0
UNJUDGED = "not judged: the stage needs no reward, and evaluation.unmeasured has its domain"
CUT = "reached max_new_tokens"
Check = Callable[[list[str]], list[Verdict]]
MakeVerifier = Callable[[], Verifier | GroupVerifier]


class Judge:
    """One verifier per domain, made when first needed, with as many threads as its concurrency. A context manager.

    makers  domain -> maker of a verifier that replaces the domain's own
    ledger  stores verdicts as they come, and has those of an attempt that was killed
    others  the other nodes of the job, for verifiers that can use them
    unjudged  domains whose answers get no score, because the stage needs none and only a reward model could give it
    score_truncated  verifiers score truncated answers too
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        makers: Mapping[str, MakeVerifier] | None = None,
        ledger: Ledger | None = None,
        others: Sequence[Node] = (),
        unjudged: Collection[str] = (),
        *,
        score_truncated: bool = False,
    ) -> None:
        self.tokenizer, self.others, self.unjudged = tokenizer, others, unjudged
        self.score_truncated = score_truncated
        self.makers = makers or {}
        self.ledger = ledger
        self.verifiers: dict[str, Verifier | GroupVerifier] = {}
        self.pools: dict[str, ThreadPoolExecutor] = {}
        self._busy: dict[str, BusyTime] = {}
        self._pending: dict[str, PendingGroup] = {}
        self._running: set[Future[list[Verdict]]] = set()
        self._beginning = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self.pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        wait(set(self._running), GRACE_SECONDS)  # of a draw that failed; a sandbox should not be closed during a run
        for verifier in self.verifiers.values():
            verifier.close()
        for pool in self.pools.values():
            pool.shutdown()

    def __call__(self, tasks: Sequence[Task], groups: Sequence[Sequence[Rollout]]) -> list[list[Answer]]:
        """Text and verdict of each answer, in the order given. What has begun is only waited for.

        A truncated answer has the outcome TRUNCATED, and one that never leaves its reasoning WRONG_FORMAT. Its score is
        0, unless the verifier scores such answers, or None in an unjudged domain. An episode keeps the verdict of its
        environment.
        """
        for task, rollouts in zip(tasks, groups, strict=True):
            if rollouts[0].id not in self._pending:
                self.expect(task, [rollout.id for rollout in rollouts])
                for rollout in rollouts:
                    self.begin(rollout)
        return [self._collect(rollouts) for rollouts in groups]

    def expect(self, task: Task, names: Sequence[str]) -> None:
        """Announces the samples of a prompt by their ids, before they are drawn."""
        self._pending |= dict.fromkeys(names, PendingGroup(task, names))

    def begin(self, rollout: Rollout) -> None:
        """Begins to score an expected sample, which has just ended. A group verifier begins with the last of a group.

        It may make the verifier, which may end with the calling thread. Any thread may call it.
        """
        group, text = self._pending[rollout.id], answer_text(self.tokenizer, rollout)
        with self._beginning:
            group.texts[rollout.id] = text
            if rollout.finish != "stop":
                group.cut.add(rollout.id)
            if verdict := self._known_verdict(group.task, rollout, text):
                group.verdicts[rollout.id] = lambda: verdict
            if asked := group.unasked():
                self._ask(group, asked)

    def least_seconds(self) -> dict[str, float]:
        """By domain, the least time that the scoring done so far takes: on all of a verifier's threads at once."""
        return {domain: busy.seconds() / self.verifiers[domain].concurrency for domain, busy in self._busy.items()}

    def _collect(self, rollouts: Sequence[Rollout]) -> list[Answer]:
        group = self._pending[rollouts[0].id]
        for rollout in rollouts:
            del self._pending[rollout.id]
        return group.answers()

    def _ask(self, group: PendingGroup, asked: Sequence[tuple[str, str]]) -> None:
        domain, verifier = group.task.domain, self.verifier(group.task.domain)
        if isinstance(verifier, GroupVerifier) and not group.complete:
            return
        judging = self.pools[domain].submit(self._recorded, domain, _check_of(verifier, group.task), asked)
        self._running.add(judging)
        judging.add_done_callback(self._running.discard)
        for place, (name, _) in enumerate(asked):
            group.verdicts[name] = partial(_verdict_at, judging, place, name in group.cut)

    def _recorded(self, domain: str, check: Check, asked: Sequence[tuple[str, str]]) -> list[Verdict]:
        """The verdicts in the ledger, else those of `check`, which the ledger then stores."""
        names = [name for name, _ in asked]
        if self.ledger and (known := self.ledger.verdicts(names)):
            return known
        with self._busy[domain].measured():
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
            self._busy[domain] = BusyTime()
            self.pools[domain] = ThreadPoolExecutor(verifier.concurrency, thread_name_prefix=domain)
        return self.verifiers[domain]

    def _known_verdict(self, task: Task, rollout: Rollout, text: str) -> Verdict | None:
        """The verdict on a sample that needs no verifier; None for the others."""
        if isinstance(rollout, EpisodeRollout):
            return rollout.verdict
        truncated = rollout.finish != "stop"
        if task.domain in self.unjudged:
            return Verdict(Outcome.TRUNCATED if truncated else Outcome.COMPLETED, None, detail=UNJUDGED)
        thinking = never_answers(self.tokenizer, rollout.prompt_ids, text)
        if not (truncated or thinking) or self._scores_unfinished(task.domain, truncated, thinking):
            return None
        return Verdict(Outcome.TRUNCATED, 0.0, detail=CUT) if truncated else Verdict.wrong_format(UNFINISHED)

    def _scores_unfinished(self, domain: str, truncated: bool, thinking: bool) -> bool:
        """Whether the domain's verifier looks at an answer that was cut off, or never leaves its reasoning."""
        if self.score_truncated and truncated and (not thinking or is_third_party(domain)):
            return True
        if domain not in self.makers:
            return False
        verifier = self.verifier(domain)
        return isinstance(verifier, GroupVerifier) and verifier.scores_truncated


def _check_of(verifier: Verifier | GroupVerifier, task: Task) -> Check:
    if isinstance(verifier, GroupVerifier):
        return partial(verifier.rank, task)
    return lambda texts: [verifier(task, text) for text in texts]


def _verdict_at(judging: Future[list[Verdict]], place: int, cut: bool) -> Verdict:
    """The verifier's verdict, with the outcome of a truncated answer."""
    verdict = judging.result()[place]
    if not cut or verdict.score is None:
        return verdict
    return replace(verdict, outcome=Outcome.TRUNCATED, detail=verdict.detail or CUT)
