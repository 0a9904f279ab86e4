"""The parts of a stage that only rank 0 has: log, ledger, judges, environments and engine."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from transformers import PreTrainedTokenizerBase

from cascade_rl.engine.cluster.node import Node
from cascade_rl.engine.core.rollouts import Request, Rollout
from cascade_rl.engine.rollout.client import EngineDied
from cascade_rl.engine.rollout.engine import Engine
from cascade_rl.engine.sync.sampler import Batch
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.run.ledger import Ledger
from cascade_rl.rl_stages.run.progress import Phase
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.step_log import StepLog
from cascade_rl.rl_stages.scoring.episodes import Episodes
from cascade_rl.rl_stages.scoring.judge import Judge
from cascade_rl.rl_stages.scoring.reward_makers import reward_makers


@dataclass(frozen=True)
class RankZero:
    """The parts that a session's operations use on rank 0.

    judge    scores with the verifiers of the domains
    rewards  scores training samples: as `judge`, except that a stage's reward model scores the stage's domain, and that
             truncated answers are scored too if the stage says so
    """

    folder: StageFolder
    log: StepLog
    ledger: Ledger
    judge: Judge
    rewards: Judge
    episodes: Episodes
    engine: Engine

    def open_ledger(self, version: int, weights: str | None) -> None:
        """Opens the ledger of the weights with digest `weights`, which may already have samples of a killed attempt.
        None: whatever they were."""
        if refused := self.ledger.open(self.folder.ledger(version), weights):
            count = len(refused.rollouts)
            self.log.progress.say(f"{count} rollouts were sampled from other weights and are sampled again")
            self.folder.record_event("ledger_refused", version=version, rollouts=count)
            self.ledger.forget(version)
            for later in self.folder.ledgers(version + 1):  # of weights that these others led to
                later.unlink()

    def discard(self, versions: Iterable[int]) -> None:
        """Removes the open ledger, and those of `versions`."""
        self.ledger.discard()
        for version in versions:
            self.folder.ledger(version).unlink(missing_ok=True)

    @contextmanager
    def draw(
        self, tasks: Sequence[Task], groups: Sequence[Sequence[Request]], version: int, *, heldout: bool = False
    ) -> Iterator["RecordedBatch"]:
        """One group of requests per task, as a batch of weights `version`. Samples in the ledger are not sampled again.

        Each sample is scored from the moment that it ends, by `judge` if `heldout`, otherwise by `rewards`.
        """
        requests, judge = [request for group in groups for request in group], self.judge if heldout else self.rewards
        before = judge.least_seconds()
        with self.log.progress.phase("generation", len(requests)) as phase:
            batch = RecordedBatch(self, judge, requests, version, phase)
            for task, group in zip(tasks, groups, strict=True):
                judge.expect(task, [request.id for request in group])
                self.episodes.begin(task, [request for request in group if request.id not in batch.rollouts])
            for rollout in batch.rollouts.values():
                judge.begin(rollout)
            yield batch
        if not (heldout or batch.awaited):  # batches in flight together share the seconds
            spent = [seconds - before.get(domain, 0.0) for domain, seconds in judge.least_seconds().items()]
            self.log.reward_overlapped_s += max(spent, default=0.0)


class RecordedBatch(Batch):
    """A batch that records each sample in the ledger, counts it on the terminal, and has it scored as it arrives.

    held  recorded samples that an earlier attempt had finished under later weights than there are yet
    """

    def __init__(self, zero: RankZero, judge: Judge, requests: Sequence[Request], version: int, phase: Phase) -> None:
        recorded = {request.id: rollout for request in requests if (rollout := zero.ledger.rollout(request))}
        self.held = {name: rollout for name, rollout in recorded.items() if rollout.newest > version}
        known = {name: rollout for name, rollout in recorded.items() if name not in self.held}
        unfinished = [replace(request, begun=zero.ledger.begun(request, version)) for request in requests]
        super().__init__(zero.engine, unfinished, zero.episodes.follow, known)
        self.zero, self.judge, self.phase = zero, judge, phase
        self.asked = {request.id: request for request in requests}
        phase.advance(len(known))

    def receive(self, rollout: Rollout) -> None:
        """See `Batch`."""
        self.zero.ledger.keep(self.asked[rollout.id], rollout)
        self._count(rollout)

    def undrawn(self) -> list[Request]:
        """What the engines must draw."""
        pending = set(self.pending()) - self.held.keys()
        return [request for request in self.requests if request.id in pending]

    def release(self, version: int) -> list[Request]:
        """Takes up the held samples that weights `version` had finished. Returns the requests of those that the ledger
        no longer has, because the weights are others now: the engines must draw them."""
        asked = [self.asked[name] for name, rollout in self.held.items() if rollout.newest <= version]
        lost = [request for request in asked if not self.zero.ledger.rollout(request)]
        for request in asked:
            rollout = self.held.pop(request.id)
            if request not in lost:
                self._count(rollout)
        return lost

    def _count(self, rollout: Rollout) -> None:
        self.phase.advance()
        self.judge.begin(rollout)
        super().receive(rollout)

    def receive_part(self, part: Rollout) -> None:
        """See `Batch`. Of a sample with an environment, those of its first turn: a new attempt begins after them."""
        asked = self.asked[part.id]
        if tuple(part.prompt_ids.tolist()) == asked.prompt_ids:
            self.zero.ledger.keep(asked, part)

    def record_death(self, death: EngineDied) -> None:
        """See `Batch`."""
        super().record_death(death)
        self.zero.log.progress.say(f"{death}; starting it again")
        self.zero.folder.record_event("engine_died", detail=str(death))


@contextmanager
def rank_zero(
    run: RunFolder,
    folder: StageFolder,
    log: StepLog,
    tokenizer: PreTrainedTokenizerBase,
    engine: Engine,
    nodes: Sequence[Node],
) -> Iterator[RankZero]:
    """Rank 0's parts, closed at the end of the block. `nodes`: the job's, this one first, which verifiers use too."""
    others, layout = nodes[1:], run.cascade.layout(folder.config)
    makers = reward_makers(folder.config, run.model, layout, folder.logs / "reward_model.log", nodes)
    with ExitStack() as exits:
        ledger = exits.enter_context(Ledger(remembers=layout.rollout.in_flight))
        judge = exits.enter_context(Judge(tokenizer, None, ledger, others, _unjudged(run.cascade, folder.config)))
        own = partial(Judge, tokenizer, makers, ledger, others, score_truncated=_scores_truncated(folder.config))
        rewards = exits.enter_context(own()) if makers or _scores_truncated(folder.config) else judge
        episodes = exits.enter_context(Episodes(tokenizer, others))
        yield RankZero(folder, log, ledger, judge, rewards, episodes, engine)


def _scores_truncated(stage: Stage) -> bool:
    return isinstance(stage, GrpoStage) and stage.score_truncated


def _unjudged(cascade: Cascade, stage: Stage) -> set[str]:
    """The unmeasured domains, if the stage needs no reward: only a reward model could score their answers."""
    if not isinstance(stage, OnPolicyStage) or stage.needs_reward:
        return set()
    return set(cascade.evaluation.unmeasured) - set(cascade.evaluation.domains)
