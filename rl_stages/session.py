"""What a stage's process holds, and the few verbs that a stage's loop is written with.

Rank 0 has the engine, the judge, the run folder and the terminal; the other ranks have their part of the trainer.
`from_rank0` is how a result of rank 0 reaches them.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import torch.distributed as dist
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.backend.ranks import any_rank, from_rank0, is_rank0
from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling
from cascade_rl.engine.models import export_hf, read_config
from cascade_rl.engine.rollout.client import EngineDied, RolloutEngine
from cascade_rl.engine.rollout.nodes import nodes_of_job
from cascade_rl.engine.sync.sampler import Sampler, sample
from cascade_rl.engine.sync.weight_sync import Refit
from cascade_rl.engine.train import checkpoint
from cascade_rl.engine.train.reference import Reference
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.engine.train.weights_digest import weights_digest
from cascade_rl.rl_stages import base_model
from cascade_rl.rl_stages.agreement import Mismatch
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.tokenizer import encode_prompt
from cascade_rl.rl_stages.evaluation import evaluate, heldout_tasks
from cascade_rl.rl_stages.run import stop_request, watchdog
from cascade_rl.rl_stages.run.ledger import Ledger
from cascade_rl.rl_stages.run.progress import Phase
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.sample_record import SampleRecord
from cascade_rl.rl_stages.run.step_log import StepLog
from cascade_rl.rl_stages.run.stop_rule import early_stop, has_rule
from cascade_rl.rl_stages.scoring.episodes import Episodes
from cascade_rl.rl_stages.scoring.judge import Judge, MakeVerifier
from cascade_rl.rl_stages.scoring.reward_makers import reward_makers
from cascade_rl.rl_stages.start import start
from cascade_rl.rl_stages.tasks.load_tasks import Split, load_tasks

PROBES, PROBE_TAIL = 4, 16


class Session[S: Stage]:
    """One attempt at one stage, on this rank; a context manager."""

    def __init__(self, run: RunFolder, folder: StageFolder) -> None:
        self.run, self.cascade, self.folder = run, run.cascade, folder
        self.stage: S = folder.config  # type: ignore[assignment]
        self.layout = run.cascade.layout(folder.config)
        self.seed = zlib.crc32(f"{self.cascade.seed}/{self.stage.name}".encode())
        self.exits = ExitStack()
        initialize_distributed(self.layout.parallel, self.cascade.seed)
        self.exits.callback(dist.destroy_process_group)
        self.watchdog = watchdog.Watchdog(dist.get_rank(), watchdog.limit_s(), watchdog.say)
        self.parent = folder.parent.export if folder.parent else base_model.ready(run, self.layout.parallel)
        self.hf_config = read_config(self.parent)
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.parent)

    def __enter__(self) -> Self:
        with self.exits:
            self.nodes = self.exits.enter_context(nodes_of_job(self.layout.rollout.engines))
            if is_rank0():
                self.log = self.exits.enter_context(StepLog(self.folder))
                self.ledger = self.exits.enter_context(Ledger())
                self.judge = self._judge()
                self.rewards = self._rewards()
                self.episodes = self._episodes()
            self.engine = self._start_engine() if is_rank0() else None
            self.trainer = self._build_trainer()
            self.checkpoints = checkpoint.CheckpointWriter()
            self.first_step = self._restore()
            self.refit = Refit(self.trainer, self.engine, self._probe_ids(), self.layout.rollout)
            start(self.refit, self.folder, self.tokenizer, self.parent, self.first_step)
            self.ledger_version = -1
            self.exits = self.exits.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is Mismatch and is_rank0():
            self.ledger.discard()  # what the trainer disagrees with is drawn again
        self.exits.close()

    # The verbs of a loop.

    def steps(self) -> Iterator[int]:
        """Steps that are still to be taken, counting from 0; after each that is due a checkpoint is written."""
        step, ended = self.first_step, self._ended(self.first_step)
        while not ended:
            yield step
            step += 1
            self.checkpoints.poll()
            stop, ended = any_rank(stop_request.asked()), self._ended(step)
            if stop or ended or step % self.stage.checkpoint_every == 0:
                self._save(step)
            if stop:
                self.checkpoints.finish()
                raise stop_request.StopRequested
        self.checkpoints.finish()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with self.watchdog.phase(name), self.log.phase(name) if is_rank0() else nullcontext():
            yield

    def teacher(self, domain: str) -> Path:
        """Hugging Face folder of the domain's teacher."""
        return self.run.teacher(self.folder, domain)

    def tasks(self, sources: Sequence[str], split: Split) -> list[Task]:
        return [task for source in sources for task in load_tasks(source, split=split, seed=self.seed)]

    def draw(self, label: str, tasks: Sequence[Task], group: int, sampling: Sampling) -> list[list[Rollout]]:
        """`group` answers to each task, from the current weights; the same list on every rank.

        `label` names the batch: with the task and the place in the group it gives each sample its id and its seed.
        """
        self._open_ledger()
        rollouts = self._sample(self._requests(label, tasks, group, sampling) if is_rank0() else [])
        return [rollouts[first : first + group] for first in range(0, len(rollouts), group)]

    def record(
        self, step: int, metrics: Mapping[str, float], tokens: int, records: Sequence[SampleRecord] = ()
    ) -> None:
        """Ends step `step`, counting from 1; `tokens` is what it generated, or learned from."""
        if is_rank0():
            self.log.step(step, metrics, tokens, records)
            if self.trainer.expert_tokens.size:
                self.folder.record_event("expert_tokens", step=step, tokens=self.trainer.expert_tokens.tolist())

    # The frame around a loop.

    def score(self, when: str) -> None:
        """Held-out scores, taken once "before" and once "after" the stage."""
        if when in from_rank0(self.folder.scores):
            return
        scores = self._heldout_scores(when)
        if is_rank0():
            self.folder.record_scores(when, scores)
            self.log.progress.say(f"{when}: " + ", ".join(f"{name} {score:.3f}" for name, score in scores.items()))

    def finish(self) -> None:
        """Exports the weights for the next stage, and for vLLM and transformers."""
        export_hf(self.trainer.module, self.hf_config, self.folder.export, tokenizer_from=self.parent)
        if is_rank0():
            self.folder.finish()

    # Parts.

    def _heldout_scores(self, when: str) -> Mapping[str, float]:
        """By domain, of all domains; collective."""
        return from_rank0(lambda: self._parents_scores(when)) or evaluate(self)

    def _parents_scores(self, when: str) -> Mapping[str, float]:
        """Before a stage, what its parent had after: the same weights, prompts and seeds."""
        parent = self.folder.parent
        return parent.scores()["after"] if when == "before" and parent else {}

    def _rewards(self) -> Judge:
        """What scores the samples of training: where the stage has a reward model, that model scores its domain."""
        log = self.folder.logs / "reward_model.log"
        makers = reward_makers(self.stage, self.run.model, self.layout.rollout, log)
        return self._judge(makers) if makers else self.judge

    def _judge(self, makers: Mapping[str, MakeVerifier] | None = None) -> Judge:
        return self.exits.enter_context(Judge(self.tokenizer, makers, self.ledger, self.nodes[1:]))

    def _episodes(self) -> Episodes:
        longest = self.layout.rollout.max_model_len
        return self.exits.enter_context(Episodes(self.tokenizer, longest, self.nodes[1:]))

    def _start_engine(self) -> RolloutEngine:
        rollout, log = self.layout.rollout, self.folder.logs / "engine.log"
        return self.exits.enter_context(RolloutEngine(self.parent, rollout, self.cascade.seed, log, self.nodes))

    def _build_trainer(self, *, scalar_head: bool = False) -> Trainer:
        return Trainer(
            self.hf_config,
            self.layout.parallel,
            self.stage.optimizer,
            total_steps=self.stage.steps,
            token_budget=self.stage.token_budget,
            seed=self.cascade.seed,
            router=self.stage.router,
            scalar_head=scalar_head,
        )

    def _restore(self) -> int:
        """The parent's weights, or the newest complete checkpoint; returns the number of finished steps."""
        self.trainer.load_hf(self.parent)
        self.reference = Reference(self.trainer) if getattr(self.stage, "kl_coefficient", 0.0) else None
        step = from_rank0(self.folder.restart)
        if step:
            checkpoint.load(self.trainer, self.folder.checkpoint(step))
        return step

    def _ended(self, step: int) -> bool:
        """Whether the stage, which has taken `step` steps, takes no further one. Collective."""
        return step == self.stage.steps or (has_rule(self.stage) and from_rank0(self._stops_early))

    def _stops_early(self) -> bool:
        assert has_rule(self.stage)
        stop = early_stop(self.stage, self.folder.metrics.rows())
        if stop:
            self.log.progress.say(f"ends before step {self.stage.steps}: {stop.reason}")
            self.folder.record_event("early_stop", **asdict(stop))
        return stop is not None

    def _save(self, step: int) -> None:
        if is_rank0():
            self.folder.begin_checkpoint(step)
        dist.barrier()
        self.checkpoints.start(self.trainer, self.folder.partial_checkpoint(step), partial(self._commit, step))

    def _commit(self, step: int) -> None:
        if is_rank0():
            self.folder.commit_checkpoint(step)

    def _requests(self, label: str, tasks: Sequence[Task], group: int, sampling: Sampling) -> list[Request]:
        stops = replace(sampling, stop_token_ids=(self.tokenizer.eos_token_id,))
        requests: list[Request] = []
        for position, task in enumerate(tasks):
            prompt_ids = tuple(encode_prompt(self.tokenizer, task.messages, task.tools, task.thinking))
            names = [f"{label}/{position}/{task.id}/{i}" for i in range(group)]
            drawn = [Request(name, prompt_ids, stops, self._request_seed(name)) for name in names]
            self.episodes.begin(task, [request for request in drawn if not self.ledger.rollout(request)])
            requests += drawn
        return requests

    def _request_seed(self, name: str) -> int:
        return zlib.crc32(f"{self.cascade.seed}/{name}".encode())

    def _sample(self, requests: list[Request]) -> list[Rollout]:
        if self.engine is None:
            return sample(None, self.refit, requests)
        asked = {request.id: request for request in requests}
        drawn = {name: rollout for name, request in asked.items() if (rollout := self.ledger.rollout(request))}
        with self.log.progress.phase("generation", len(requests)) as phase:
            phase.advance(len(drawn))
            finished = partial(self._finished, asked, phase)
            sampler = Sampler(self.engine, self.episodes.follow, finished, self._engine_died, drawn)
            with self.watchdog.waiting_for(lambda: [name for name in asked if name not in sampler.rollouts]):
                return sample(sampler, self.refit, requests)

    def _finished(self, asked: Mapping[str, Request], phase: Phase, rollout: Rollout) -> None:
        self.ledger.keep(asked[rollout.id], rollout)
        phase.advance()

    def _open_ledger(self) -> None:
        """That of the weights in place, with what an attempt that was killed has drawn from them."""
        if self.ledger_version == self.refit.version:
            return
        self.ledger_version, weights = self.refit.version, weights_digest(self.trainer)
        if is_rank0() and (refused := self.ledger.open(self.folder.ledger(self.ledger_version), weights)):
            count = len(refused.rollouts)
            self.log.progress.say(f"{count} rollouts were drawn from other weights and are drawn again")
            self.folder.record_event("ledger_refused", version=self.ledger_version, rollouts=count)

    def _engine_died(self, death: EngineDied) -> None:
        self.log.progress.say(f"{death}; starting it again")
        self.folder.record_event("engine_died", detail=str(death))

    def _probe_ids(self) -> list[list[int]]:
        """For each engine, held-out prompts followed by random tokens: text that a chat model sees, and text that
        it does not."""
        heldout = heldout_tasks(self.cascade, self.cascade.evaluation.domains[0])[:PROBES]
        tasks = heldout * self.layout.rollout.engines
        noise = np.random.default_rng(self.seed).integers(0, len(self.tokenizer), (len(tasks), PROBE_TAIL))
        prompts = [encode_prompt(self.tokenizer, task.messages, task.tools) for task in tasks]
        return [prompt + tail.tolist() for prompt, tail in zip(prompts, noise, strict=True)]
