"""The session of a stage that samples, with the operations that its loop is written in.

Only rank 0 has `zero`. The other ranks have only their part of the trainer. `on_rank0` broadcasts results to all ranks.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from cascade_rl.engine.backend.ranks import from_rank0
from cascade_rl.engine.cluster.node import Node
from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling
from cascade_rl.engine.rollout.client import RolloutEngine
from cascade_rl.engine.rollout.engine import Engine
from cascade_rl.engine.rollout.last_parts import left, new_folder
from cascade_rl.engine.rollout.nodes import nodes_of_job
from cascade_rl.engine.sync.sampler import sample
from cascade_rl.engine.sync.weight_sync import Refit
from cascade_rl.engine.train.weights_digest import weights_digest
from cascade_rl.rl_stages.agreement import Mismatch
from cascade_rl.rl_stages.benchmarks.results import flat, in_words, plain
from cascade_rl.rl_stages.config.base import BASE
from cascade_rl.rl_stages.config.room import Room, total_tokens
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.tokenizer import encode_prompt
from cascade_rl.rl_stages.evaluation.benchmark_scores import benchmark_scores
from cascade_rl.rl_stages.evaluation.heldout import evaluate, heldout_tasks
from cascade_rl.rl_stages.graders import prove_graders, say_tiers
from cascade_rl.rl_stages.rank_zero import RankZero, RecordedBatch, rank_zero
from cascade_rl.rl_stages.run.ledger import take_up
from cascade_rl.rl_stages.run.sample_record import SampleRecord
from cascade_rl.rl_stages.start import start
from cascade_rl.rl_stages.tasks.prompt_room import PromptRoom
from cascade_rl.rl_stages.tasks.stage_domains import prove_rewards
from cascade_rl.rl_stages.training_session import TrainingSession

PROBES, PROBE_TAIL = 4, 16


def _silent(_message: str) -> None:
    """What ranks other than 0 do with a message."""


class Session[S: Stage](TrainingSession[S]):
    """A context manager on each rank. `zero` is None on all ranks except 0.

    ahead  rank 0's thread for batches that are sampled while the trainer learns
    """

    zero: RankZero | None
    ahead: ThreadPoolExecutor

    def open(self) -> None:
        """Starts the engines, builds the trainer and verifies that both have the same weights."""
        nodes = self.exits.enter_context(nodes_of_job(self.layout.rollout.engines))
        self.zero = self._open_zero(nodes)
        super().open()
        engine = self.zero.engine if self.zero else None
        self.refit = Refit(self.trainer, engine, self._probe_ids(), self.layout.rollout)
        start(self.refit, self.folder, self.tokenizer, self.parent, self.first_step)
        self.ledger_version = -1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind and issubclass(kind, Mismatch) and self.zero:  # these samples must not be learned from: sampled again
            newest = self.refit.version
            self.zero.discard(range(max(newest - self.layout.rollout.max_staleness, 0), newest + 1))
        super().__exit__(kind)

    # The operations of a loop, in addition to those of `TrainingSession` and `refit`.

    def draw(self, label: str, tasks: Sequence[Task], group: int, sampling: Sampling) -> list[list[Rollout]]:
        """`group` samples for each task from the current weights, on rank 0; for each task none on the others.

        `label` names the batch. Together with the task and the position in the group it determines a sample's id and
        seed. Each answer is limited to what its prompt leaves of the total. Rank 0 begins to score each sample when it
        ends; `zero.rewards` then has the verdicts.
        """
        return self.draw_all({label: tasks}, group, sampling)[label]

    def draw_all(
        self, batches: Mapping[str, Sequence[Task]], group: int, sampling: Sampling, *, heldout: bool = False
    ) -> dict[str, list[list[Rollout]]]:
        """`draw` for several batches at once, by label. Of `heldout` samples, `zero.judge` has the verdicts."""
        with self.drawing(batches, group, sampling, heldout=heldout) as batch:
            rollouts = iter(sample(batch, self.refit))
        return {label: [list(islice(rollouts, group)) for _ in tasks] for label, tasks in batches.items()}

    def open_ledger(self, version: int) -> None:
        """Of the trainer's weights, or of those before them, which an earlier attempt had and which are gone.
        Collective."""
        if self.ledger_version == version:
            return
        self.ledger_version = version
        weights = weights_digest(self.trainer) if version >= self.refit.version else None
        if self.zero:
            self.zero.open_ledger(version, weights)

    @contextmanager
    def drawing(
        self,
        batches: Mapping[str, Sequence[Task]],
        group: int,
        sampling: Sampling,
        *,
        heldout: bool = False,
        ledger: int | None = None,
    ) -> Iterator[RecordedBatch | None]:
        """In the block, rank 0 has a batch to `sample`, as `draw_all` does; the other ranks have None. Collective.

        ledger  weight version whose ledger has its samples; None: that of the engines' weights
        """
        self.open_ledger(self.refit.version if ledger is None else ledger)
        with ExitStack() as drawing:
            batch = None
            if self.zero:
                labelled = [(f"{label}/{i}", task) for label, tasks in batches.items() for i, task in enumerate(tasks)]
                limits = self._limits(sampling)
                requests = [self._requests(name, task, group, limits) for name, task in labelled]
                drawn = self.zero.draw([task for _, task in labelled], requests, self.refit.version, heldout=heldout)
                batch = drawing.enter_context(drawn)
                drawing.enter_context(self.watchdog.waiting_for(batch.pending))
            yield batch

    def record(
        self, step: int, metrics: Mapping[str, float], tokens: int, records: Sequence[SampleRecord] = ()
    ) -> None:
        """See `TrainingSession`. A step whose weights are in the engines also has what they changed there."""
        refitted = self.refit.version == step
        super().record(step, {**metrics, **(self.refit.moved if refitted else {})}, tokens, records)
        if self.log and refitted and self.refit.bytes:
            self.folder.record_event("refit", step=step, bytes=self.refit.bytes)

    def on_rank0[T](self, produce: Callable[[RankZero], T], told: Callable[[T], T] | None = None) -> T:
        """The result of `produce(zero)` on rank 0, on every rank; on the others as `told` makes it. Collective."""

        def on_this_rank() -> T:
            assert self.zero
            return produce(self.zero)

        return from_rank0(on_this_rank, told)

    def prompt_room(self, room: Room, thinking_fraction: float | None = None) -> PromptRoom:
        """Which prompts have room, measured with the stage's tokenizer."""
        say = self.log.progress.say if self.log else _silent
        return PromptRoom(self.tokenizer, room, thinking_fraction, say)

    def start_engine(self, nodes: list[Node]) -> AbstractContextManager[Engine]:
        """Rank 0's sampler, on the nodes of the job. A subclass may use another one."""
        log = self.folder.logs / "engine.log"
        return RolloutEngine(self.parent, self.layout.rollout, self.cascade.seed, log, nodes, self._last_parts())

    def heldout_scores(self, when: str) -> Mapping[str, float]:
        """By domain. The scores before a stage are those after its parent: same weights, prompts and seeds."""
        parent = self.folder.parent
        known = from_rank0(lambda: parent.scores()["after"] if when == "before" and parent else {})
        return known or evaluate(self, when)

    def measure(self, when: str) -> None:
        """The benchmarks of the cascade's suites. Those before a stage are those after its parent."""
        if not self.cascade.evaluation.suites or when in from_rank0(self.folder.benchmarks):
            return
        parent = self.folder.parent if when == "before" else None
        found = from_rank0(lambda: parent.benchmarks().get("after") if parent else None)
        if found is None:
            names = {"before": parent.config.name if parent else BASE, "after": self.stage.name}
            found = plain(benchmark_scores(self, names[when], when))
        if self.log:
            self.folder.record_benchmarks(when, found)
            self.log.benchmarks(when, flat(found), in_words(found))

    def _commit(self, step: int) -> None:
        if self.zero:
            self.zero.ledger.sync()  # the samples of this step were drawn from weights that no checkpoint has
        super()._commit(step)

    def _open_zero(self, nodes: list[Node]) -> RankZero | None:
        if self.log is None:
            return None
        places = say_tiers(self.cascade, self.stage, nodes, self.log)
        prove_rewards([self.stage])  # in the environment of the run, which a launcher on a cluster may not have
        # Verifiers end with the thread that made them, and what samples in it ends with the engine.
        self.ahead = self.exits.enter_context(ThreadPoolExecutor(1, thread_name_prefix="ahead"))
        engine = self.exits.enter_context(self.start_engine(nodes))
        parts = rank_zero(self.run, self.folder, self.log, self.tokenizer, engine, nodes)
        zero = self.exits.enter_context(parts)
        prove_graders(self.cascade, self.stage, zero, places)  # while the engine starts
        return zero

    def _last_parts(self) -> Path:
        """Where this attempt's engines leave what they have drawn; what earlier ones left is in the ledgers."""
        assert self.log
        with left(self.folder.last_parts) as parts:
            found = take_up(parts, self.folder.ledger)
        if found:
            self.log.progress.say(f"{len(found)} samples go on from {found.total()} tokens that engines have left")
            self.folder.record_event("last_parts", samples=len(found), tokens=found.total())
        return new_folder(self.folder.last_parts)

    def _requests(self, label: str, task: Task, group: int, sampling: Sampling) -> list[Request]:
        prompt_ids = tuple(encode_prompt(self.tokenizer, task.messages, task.tools, task.thinking))
        assert sampling.max_total_tokens is not None
        left = min(sampling.max_new_tokens, sampling.max_total_tokens - len(prompt_ids))
        sampling = replace(sampling, max_new_tokens=left)
        names = [f"{label}/{task.id}/{i}" for i in range(group)]
        return [Request(name, prompt_ids, sampling, self._request_seed(name)) for name in names]

    def _limits(self, sampling: Sampling) -> Sampling:
        total = total_tokens(sampling, self.layout.rollout)
        stops = (self.tokenizer.eos_token_id, *sampling.stop_token_ids)
        return replace(sampling, max_total_tokens=total, stop_token_ids=stops)

    def _request_seed(self, name: str) -> int:
        return zlib.crc32(f"{self.cascade.seed}/{name}".encode())

    def _probe_ids(self) -> list[list[int]]:
        """For each engine, the ends of held-out prompts followed by random tokens: typical text for a chat model, and
        text that it never sees. vLLM needs room for a token more."""
        domain, room = self.cascade.evaluation.domains[0], self.prompt_room(self.cascade.evaluation_room)
        count = min(PROBES, self.cascade.evaluation.prompts_per_domain)
        heldout = heldout_tasks(self.cascade, domain, room.admits, count)
        tasks = heldout * self.layout.rollout.engines
        noise = np.random.default_rng(self.seed).integers(0, len(self.tokenizer), (len(tasks), PROBE_TAIL))
        prompts = [encode_prompt(self.tokenizer, task.messages, task.tools) for task in tasks]
        longest = self.layout.rollout.max_model_len - PROBE_TAIL - 1
        return [prompt[-longest:] + tail.tolist() for prompt, tail in zip(prompts, noise, strict=True)]
