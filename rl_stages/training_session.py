"""One attempt at one stage, of any kind: the trainer, its steps, checkpoints and log."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import ClassVar, Self

import torch.distributed as dist

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.backend.ranks import any_rank, barrier, from_rank0, is_rank0
from cascade_rl.engine.lora.peft import export_adapters
from cascade_rl.engine.models import export_hf, read_config
from cascade_rl.engine.train import checkpoint
from cascade_rl.engine.train.reference import first_weights
from cascade_rl.engine.train.trainer import Trainer
from cascade_rl.rl_stages import base_model
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.data.tokenizer import load_tokenizer
from cascade_rl.rl_stages.run import stop_request, watchdog
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.sample_record import SampleRecord
from cascade_rl.rl_stages.run.step_log import StepLog
from cascade_rl.rl_stages.run.stop_rule import early_stop, has_rule
from cascade_rl.rl_stages.run.trackers.known import trackers


class TrainingSession[S: Stage]:
    """A context manager on each rank. `log` is None on all ranks except 0."""

    scalar_head: ClassVar[bool] = False

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
        self.chat_template = base_model.chat_template(self.cascade.base)
        self.tokenizer = load_tokenizer(self.parent, self.chat_template)

    def __enter__(self) -> Self:
        with self.exits:
            self.log = self._open_log() if is_rank0() else None
            self.open()
            self.exits = self.exits.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.log:
            self.log.failed = kind is not None
        self.exits.close()

    def open(self) -> None:
        """Builds the trainer with the weights of the parent or of the newest complete checkpoint."""
        self.trainer = self._build_trainer()
        self.checkpoints = checkpoint.CheckpointWriter()
        self.first_step = self._restore()

    # The operations of a loop.

    def steps(self) -> Iterator[int]:
        """The remaining steps, counting from 0. Writes a checkpoint after each step for which one is due."""
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
        """Times a phase of the step, and reports if it takes too long."""
        with self.watchdog.phase(name), self.log.phase(name) if self.log else nullcontext():
            yield

    def record(
        self, step: int, metrics: Mapping[str, float], tokens: int, records: Sequence[SampleRecord] = ()
    ) -> None:
        """Ends step `step`, counting from 1. `tokens`: the number that it generated or learned from."""
        if self.log:
            self.log.step(step, metrics, tokens, records)
            if self.trainer.expert_tokens.size:
                self.folder.record_event("expert_tokens", step=step, tokens=self.trainer.expert_tokens.tolist())

    # The frame around a loop.

    def score(self, when: str) -> None:
        """Held-out scores, taken once "before" and once "after" the stage."""
        if when in from_rank0(self.folder.scores):
            return
        scores = self.heldout_scores(when)
        self.measure(when)
        if self.log:
            self.folder.record_scores(when, scores)
            if scores:
                self.log.heldout(when, scores)

    def heldout_scores(self, when: str) -> Mapping[str, float]:
        """By domain. Collective."""
        raise NotImplementedError

    def measure(self, when: str) -> None:
        """Records what else is measured once "before" and once "after" the stage. Collective."""

    def finish(self) -> None:
        """Exports the weights for the next stage, and for vLLM and transformers."""
        self.export()
        if is_rank0():
            self.folder.finish()

    def export(self) -> None:
        """Collective."""
        export_hf(
            self.trainer.module,
            self.hf_config,
            self.folder.export,
            tokenizer_from=self.parent,
            chat_template=self.chat_template,
            beside_from=self.parent,
        )
        if self.trainer.lora:
            export_adapters(self.trainer.lora, self.hf_config, self.folder.adapter, str(self.parent))

    def _open_log(self) -> StepLog:
        log = self.exits.enter_context(StepLog(self.folder))
        log.report_to(trackers(self.cascade, self.folder, log.warn))
        return log

    def _build_trainer(self) -> Trainer:
        return Trainer(
            self.hf_config,
            self.layout.parallel,
            self.stage.optimizer,
            total_steps=self.stage.steps,
            token_budget=self.stage.token_budget,
            seed=self.cascade.seed,
            router=self.stage.router,
            scalar_head=self.scalar_head,
            lora=self.stage.lora,
        )

    def _restore(self) -> int:
        """Loads the parent's weights or the newest complete checkpoint. Returns the number of finished steps."""
        self.trainer.load_hf(self.parent)
        held = getattr(self.stage, "kl_coefficient", 0.0)
        self.reference = first_weights(self.trainer) if held else None
        step = from_rank0(self.folder.restart)
        if step:
            checkpoint.load(self.trainer, self.folder.checkpoint(step))
        return step

    def _ended(self, step: int) -> bool:
        """Whether the stage ends after `step` steps. Collective."""
        return step == self.stage.steps or (has_rule(self.stage) and from_rank0(self._stops_early))

    def _stops_early(self) -> bool:
        assert self.log and has_rule(self.stage)
        stop = early_stop(self.stage, self.folder.metrics.rows())
        if stop:
            self.log.progress.say(f"ends before step {self.stage.steps}: {stop.reason}")
            self.folder.record_event("early_stop", **asdict(stop))
        return stop is not None

    def _save(self, step: int) -> None:
        if is_rank0():
            self.folder.begin_checkpoint(step)
        barrier()
        self.checkpoints.start(self.trainer, self.folder.partial_checkpoint(step), partial(self._commit, step))

    def _commit(self, step: int) -> None:
        if self.log:
            self.log.settle()  # the steps up to here are not run again, so nothing else would write their samples
            self.folder.commit_checkpoint(step, self.layout.rollout.max_staleness)
