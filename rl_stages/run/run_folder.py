"""The run folder, which contains all state that a run keeps on disk.

    runs/<name>/
      cascade.yaml  lineage.json  summary.json
      cache/                          what a GPU's compilers made, for the next stage
      inputs.json                     cached checks of the data files (rl_stages/run/known_data.py)
      superseded/02_if_rl-1a2b3c4d/   a stage as it was before its settings, data or parent changed
      stages/01_sft/
        stage.yaml
        hash                        of all that determines the stage's weights (rl_stages/run/upgrade/hash_file.py)
        metrics.jsonl               one row per step, and row 0 of a first validation loss; a rerun with the same
                                    seed gives the same bytes
        events.jsonl                events with their times: attempts, seconds per phase; never rewritten
        parity.json                 trainer and engine compared on the same tokens at the start (rl_stages/start.py)
        scores.json                 held-out scores {"before": {domain: score}, "after": {...}}
        benchmarks.json             numbers of the suites {"before": ..., "after": ...}, as in the OUT/results.json
                                    of `cascade eval`
        prompts.jsonl               GRPO: the prompts of each step, with their pass rates (rl_stages/prompt_ledger.py)
        ledger/version_00011        samples and verdicts of those weights (rl_stages/run/ledger.py)
        ledger/last_parts/          what engines have left when they lost the trainer (engine/rollout/last_parts.py)
        rollouts/step_00012.parquet
        heldout/after.parquet       the answers that scores.json is of; heldout/before.parquet if it took those itself;
                                    heldout/after-NAME.parquet those to a benchmark
        checkpoints/step_00012/     complete; an incomplete one is named step_00012.partial
        export/  tensorboard/  logs/
        adapter/                    of a stage with `lora`: what it has learned, in PEFT's form
        tracked/                    by tracker: its run, and the newest step that it was told (run/trackers/)
        done                        written last: the stage is finished

Guarantees: A folder that was made with another base, seed or evaluation is refused and not touched. A stage that
changed runs again, with the stages that depend on it and no others. If the stage has work in it, somebody must agree
first. Its old folder is kept, and used again if the change is undone. A stage whose finished steps would be the same
goes on from its newest checkpoint. Only one launcher works in the folder at a time.
Whatever is killed, and whenever, a stage continues from its newest complete checkpoint, with the metrics up to there.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.lora.peft_config import has_base
from cascade_rl.rl_stages.config.base import BASE, BEST, is_folder
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.run.durable_file import JsonLines, read_json, sync, write_atomically, write_json
from cascade_rl.rl_stages.run.known_data import KnownData
from cascade_rl.rl_stages.run.score_gate import GateVerdict, verdicts
from cascade_rl.rl_stages.run.stage_graph import Identity, base_content_hash, dependencies, identities
from cascade_rl.rl_stages.run.upgrade.hash_file import HashFile, write_hash
from cascade_rl.rl_stages.run.upgrade.kept_folders import Agree, Changed, KeptFolders, refuse
from cascade_rl.rl_stages.run.upgrade.recorded import changed_keys, read_cascade, recorded_yaml

INPUTS = "inputs.json"
CACHE_VARIABLE = "CASCADE_CACHE_DIR"
SHARED = ("base", "seed", "evaluation")  # keys of the cascade that every stage's weights or scores depend on
BOUNDS = {"evaluation.max_infrastructure_failures"}  # of these, a bound that changes no score
LOCK_PATIENCE_S = 2.0  # the ranks of a killed launcher hold its lock for a moment


@dataclass(frozen=True)
class StageSummary:
    """A stage's entry in summary.json. What no step reported is None; of the validation loss, the first and the last
    count."""

    name: str
    domain: str
    before: Mapping[str, float]
    after: Mapping[str, float]
    steps: int
    seconds: float
    tme_max: float | None
    replay_fraction_min: float | None
    validation_loss: tuple[float, float] | None = None


@dataclass(frozen=True)
class StageFolder:
    """One stage's part of the run folder. `position` counts from 1. `parent` is None if the stage starts from the base.
    `identity` is None if the run folder was opened but not claimed."""

    root: Path
    position: int
    config: Stage
    parent: "StageFolder | None"
    content_hash: str
    identity: Identity | None

    @property
    def label(self) -> str:
        return self.root.name

    @property
    def export(self) -> Path:
        return self.root / "export"

    @property
    def adapter(self) -> Path:
        """Of a stage with `lora`, beside `export`, which has the merged weights."""
        return self.root / "adapter"

    @property
    def teaches_from(self) -> Path:
        """Its model as a teacher: the adapter where its base is at hand, otherwise `export`."""
        return self.adapter if has_base(self.adapter) else self.export

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def metrics(self) -> JsonLines:
        return JsonLines(self.root / "metrics.jsonl")

    @property
    def events(self) -> JsonLines:
        return JsonLines(self.root / "events.jsonl")

    def create(self) -> None:
        """Makes the folders, hash and stage.yaml. Does not touch anything else in the folder."""
        assert self.identity, "a stage of a folder that was only opened"
        for name in ("rollouts", "ledger", "checkpoints", "logs", "tensorboard"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        write_hash(self.root, self.identity)  # first, because an older hash is checked with the stage.yaml of its time
        write_atomically(self.root / "stage.yaml", recorded_yaml(self.config))

    # The records of a step.

    def record_step(
        self,
        step: int,
        metrics: Mapping[str, float],
        seconds: Mapping[str, float],
        tokens: int,
        reward_overlapped_s: float = 0.0,
        stall: Mapping[str, float] | None = None,
    ) -> None:
        """Logs a step. `metrics` are equal in all runs with the same seed. `seconds` per phase, those that phases
        overlap, and the engines' `stall` go to the events."""
        self.metrics.append({"step": step} | dict(metrics))
        times = {"seconds": dict(seconds), "reward_overlapped_s": reward_overlapped_s, **(stall or {})}
        self.record_event("step", step=step, tokens=tokens, **times)

    def record_event(self, event: str, **facts: Any) -> None:
        """Logs an event with its time (Unix seconds)."""
        self.events.append({"time": time.time(), "event": event} | facts)

    def rollouts(self, step: int) -> Path:
        return self.root / "rollouts" / f"step_{step:05d}.parquet"

    def heldout(self, when: str) -> Path:
        """The answers of the evaluation "before" or "after" the stage."""
        return self.root / "heldout" / f"{when}.parquet"

    def benchmark_answers(self, when: str, benchmark: str) -> Path:
        return self.root / "heldout" / f"{when}-{benchmark}.parquet"

    def ledger(self, version: int) -> Path:
        return self.root / "ledger" / f"version_{version:05d}"

    @property
    def last_parts(self) -> Path:
        """Of samples that the end of an attempt has cut (engine/rollout/last_parts.py)."""
        return self.root / "ledger" / "last_parts"

    # Checkpoints. Rank 0 calls begin, commit and restart, with a barrier after begin and before commit.

    def checkpoint(self, step: int) -> Path:
        return self.root / "checkpoints" / f"step_{step:05d}"

    def partial_checkpoint(self, step: int) -> Path:
        """The folder to which all ranks write the checkpoint of a step until it is complete."""
        return self.checkpoint(step).with_suffix(".partial")

    def begin_checkpoint(self, step: int) -> None:
        """Makes the empty folder `partial_checkpoint(step)`."""
        shutil.rmtree(self.partial_checkpoint(step), ignore_errors=True)
        self.partial_checkpoint(step).mkdir(parents=True)

    def commit_checkpoint(self, step: int, max_staleness: int = 0) -> None:
        """Gives the checkpoint its final name and deletes the oldest ones beyond `keep_checkpoints`, with the ledgers
        that no step after the others reads, whose samples may be older by `max_staleness` weight versions."""
        self.partial_checkpoint(step).rename(self.checkpoint(step))
        sync(self.root / "checkpoints")
        for old in self.checkpoint_steps()[: -self.config.keep_checkpoints]:
            self._drop_checkpoint(old)
            self._drop_ledgers(old - max(max_staleness - 1, 0))

    def _drop_checkpoint(self, step: int) -> None:
        doomed = self.partial_checkpoint(step)
        shutil.rmtree(doomed, ignore_errors=True)
        self.checkpoint(step).rename(doomed)  # a kill during the removal must not leave half of it under this name
        shutil.rmtree(doomed)

    def _drop_ledgers(self, version: int) -> None:
        for path in (self.root / "ledger").glob("version_*"):
            if path < self.ledger(max(version, 0)):
                path.unlink()

    def ledgers(self, version: int) -> list[Path]:
        """Of these weights and later ones, in their order."""
        first = self.ledger(max(version, 0))
        return [path for path in sorted((self.root / "ledger").glob("version_*")) if path >= first]

    def checkpoint_steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        found = (self.root / "checkpoints").glob("step_*[0-9]")
        return sorted(int(path.name.removeprefix("step_")) for path in found)

    def last_step(self) -> int:
        """The step to continue from; 0 before the first checkpoint."""
        return max(self.checkpoint_steps(), default=0)

    def restart(self) -> int:
        """Resets the folder to the newest complete checkpoint. Returns its step.

        Later metrics are dropped, because those steps run again. Later rollouts stay until their step replaces them.
        """
        for partial in (self.root / "checkpoints").glob("*.partial"):
            shutil.rmtree(partial)
        step = self.last_step()
        self.metrics.keep(lambda row: row["step"] <= step)
        return step

    # The end of a stage.

    def scores(self) -> dict[str, dict[str, float]]:
        """Held-out scores so far, {"before": {domain: score}, "after": {...}}; either may be absent."""
        path = self.root / "scores.json"
        return read_json(path) if path.exists() else {}

    def record_scores(self, when: str, scores: Mapping[str, float]) -> None:
        """Stores the held-out scores taken "before" or "after" the stage."""
        if when not in ("before", "after"):
            raise ValueError(f"expected scores 'before' or 'after' the stage, found {when!r}")
        write_json(self.root / "scores.json", self.scores() | {when: dict(scores)})

    def benchmarks(self) -> dict[str, Any]:
        """Numbers of benchmarks so far, {"before": {"results": [...], "differences": [...]}, "after": {...}}; either
        may be absent."""
        path = self.root / "benchmarks.json"
        return read_json(path) if path.exists() else {}

    def record_benchmarks(self, when: str, found: Mapping[str, Any]) -> None:
        """Stores the numbers taken "before" or "after" the stage."""
        write_json(self.root / "benchmarks.json", self.benchmarks() | {when: dict(found)})

    @property
    def done(self) -> bool:
        return (self.root / "done").exists()

    def finish(self) -> None:
        """Marks the stage as finished. Raises ValueError unless last checkpoint, export and scores exist."""
        missing = [when for when in ("before", "after") if when not in self.scores()]
        ended = self.early_stop or self.last_step() == self.config.steps
        missing += [] if ended else [f"checkpoint of step {self.config.steps}"]
        missing += [] if self.export.is_dir() else ["export"]
        if missing:
            raise ValueError(f"{self.label} is not finished: missing {', '.join(missing)}")
        write_atomically(self.root / "done", "")
        shutil.rmtree(self.last_parts, ignore_errors=True)  # there is no step that would go on from them

    @property
    def early_stop(self) -> Mapping[str, Any] | None:
        """The event of the rule that ended the stage early, at its newest checkpoint. None if no rule did."""
        told = [event for event in self.events.rows() if event["event"] == "early_stop"]
        return told[-1] if told and told[-1]["step"] == self.last_step() else None

    def gate(self) -> tuple[GateVerdict, ...]:
        """What the stage lost of its held-out scores, compared with what it may lose. Empty before it is done."""
        scores = self.scores()
        return verdicts(self.config.gate, scores["before"], scores["after"]) if self.config.gate and self.done else ()

    def seconds(self) -> float:
        """Total time of all attempts, each from its start to its last event."""
        total, start, last = 0.0, 0.0, 0.0
        for event in self.events.rows():
            if event["event"] == "attempt":
                total, start = total + last - start, event["time"]
            last = event["time"]
        return total + last - start

    def summary(self) -> StageSummary:
        rows, scores = self.metrics.rows(), self.scores()
        losses = [row["validation_loss"] for row in rows if "validation_loss" in row]
        return StageSummary(
            name=self.config.name,
            domain=self.config.domain,
            before=scores.get("before", {}),
            after=scores.get("after", {}),
            steps=self.last_step(),
            seconds=round(self.seconds(), 3),
            tme_max=max((row["tme"] for row in rows if "tme" in row), default=None),
            replay_fraction_min=min((row["replay_fraction"] for row in rows if "replay_fraction" in row), default=None),
            validation_loss=(losses[0], losses[-1]) if losses else None,
        )


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run and its configuration.

    recorded  the stages' hashes are those that the last claim wrote; if False, they are computed, which reads all data
              that is not `known`
    """

    root: Path
    cascade: Cascade
    recorded: bool = False
    known: KnownData = field(default_factory=KnownData, compare=False, repr=False)

    @property
    def cache(self) -> Path:
        """Of what compilers make: in the run folder, unless the environment names a folder for several runs."""
        return Path(os.environ.get(CACHE_VARIABLE, self.root / "cache")).absolute()

    @classmethod
    def open(cls, root: Path) -> "RunFolder":
        """An existing run folder. Raises UserError if there is none."""
        if not (root / "cascade.yaml").exists():
            raise UserError(f"{root}: expected a run folder with a cascade.yaml, found none.")
        return cls(root, read_cascade(root / "cascade.yaml"), recorded=True)

    @classmethod
    @contextmanager
    def claim(
        cls, root: Path, cascade: Cascade, known: KnownData | None = None, agree: Agree = refuse
    ) -> "Iterator[tuple[RunFolder, int]]":
        """Makes the run folder or continues with it, and holds its lock.

        Yields the folder and the descriptor of the lock. The processes of a stage inherit the descriptor: the lock is
        released when all of them are gone.

        `agree` gets the folders that are about to be set aside, and those that go on with other settings. It raises
        UserError to prevent that, and then nothing is moved. Raises UserError if the folder belongs to something else,
        another configuration or a live launcher.
        """
        _refuse_foreign(root)
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root) as descriptor:
            run = cls(root, cascade, known=known or KnownData())
            run._refuse_other_config()
            if changed := run.changed():
                run.known.write(root / INPUTS)  # whatever the answer, the next launch need not read the data again
            agree(changed)
            run._kept().move()
            write_atomically(root / "cascade.yaml", recorded_yaml(cascade))
            for stage in run.stages:
                stage.create()
            run.known.write(root / INPUTS)
            yield run, descriptor

    @cached_property
    def stages(self) -> tuple[StageFolder, ...]:
        folders: dict[str, StageFolder] = {}
        found = {} if self.recorded else identities(self.cascade, self.known)
        for position, config in enumerate(self.cascade.stages, start=1):
            root = self.root / "stages" / f"{position:02d}_{config.name}"
            parent = self.cascade.parent(config)
            folder = folders[parent.name] if parent else None
            identity = found.get(config.name)
            content_hash = identity.hash if identity else HashFile.read(root).hash
            folders[config.name] = StageFolder(root, position, config, folder, content_hash, identity)
        return tuple(folders.values())

    @property
    def base_hash(self) -> str:
        """The hash of the base, with its weights if they are files that a launch has read."""
        first = self.stages[0]
        identity = first.identity or HashFile.read(first.root).identity
        return base_content_hash(self.cascade, identity.files if identity else {})

    def stage(self, name: str) -> StageFolder:
        return self.stages[self.cascade.stages.index(self.cascade.stage(name))]

    def dependencies(self, stage: StageFolder) -> tuple[StageFolder, ...]:
        """The stages that must be done before `stage`."""
        return tuple(self.stage(other.name) for other in dependencies(self.cascade, stage.config))

    def model(self, name: str) -> Path:
        """Hugging Face folder of the model `name`, which is a stage or the folder itself."""
        return Path(name) if is_folder(name) else self.stage(name).export

    def teacher(self, stage: StageFolder, domain: str) -> Path:
        """Folder of the domain's teacher, of a whole model or of an adapter. "best" is the earlier stage with the
        highest held-out score in that domain; of several with the same score, the first."""
        assert isinstance(stage.config, MopdStage)
        teacher = stage.config.teachers[domain]
        if is_folder(teacher):
            return Path(teacher)
        if teacher != BEST:
            return self.stage(teacher).teaches_from
        return max(self.dependencies(stage), key=lambda other: other.scores()["after"][domain]).teaches_from

    def record(self) -> list[StageSummary]:
        """Writes lineage.json and summary.json for the stages that are done. Returns their summaries."""
        finished = [stage for stage in self.stages if stage.done]
        summaries = [stage.summary() for stage in finished]
        lineage = [self._ancestry(stage) for stage in finished]
        write_json(self.root / "lineage.json", {"base": self.base_hash, "stages": lineage})
        write_json(self.root / "summary.json", {"stages": [asdict(summary) for summary in summaries]})
        return summaries

    def _ancestry(self, stage: StageFolder) -> dict[str, Any]:
        parent = stage.parent
        taught = stage.config.teachers if isinstance(stage.config, MopdStage) else {}
        return {
            "name": stage.config.name,
            "parents": [parent.config.name if parent else BASE],
            "parent_hashes": [parent.content_hash if parent else self.base_hash],
            "teachers": {
                domain: name if is_folder(name) else self._shown(self.teacher(stage, domain))
                for domain, name in taught.items()
            },
            "hash": stage.content_hash,
            "gate": [{**asdict(verdict), "passed": verdict.passed} for verdict in stage.gate()],
            "checkpoint": self._shown(stage.checkpoint(stage.last_step())),
            "export": self._shown(stage.export),
            "seconds": round(stage.seconds(), 3),
        }

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def _refuse_other_config(self) -> None:
        """Raises UserError if the settings that all stages share have changed."""
        path = self.root / "cascade.yaml"
        if not path.exists():
            return
        changed = changed_keys(path, self.cascade)
        differing = [(key, values) for key, values in changed if key.split(".")[0] in SHARED and key not in BOUNDS]
        keys = [f"{key} = {old}, now {new}" for key, (old, new) in differing]
        if keys:
            found = "; ".join(keys[:5])
            more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
            raise UserError(
                f"{self.root} was made with another configuration: {found}{more}. "
                "Nothing was changed. Set another name=..., another --runs folder, or remove this one."
            )

    def changed(self) -> list[Changed]:
        """The stage folders with work in them that a claim would set aside, or go on with under other settings."""
        return self._kept().changed()

    def _kept(self) -> KeptFolders:
        stages = {stage.config.name: stage for stage in self.stages}
        found = {name: stage.identity for name, stage in stages.items() if stage.identity}
        return KeptFolders(self.root, self.cascade, found, {name: stage.root for name, stage in stages.items()})


def _refuse_foreign(root: Path) -> None:
    """Raises UserError if the folder has files but no cascade.yaml, so it is no run folder. A launcher that was killed
    early may have left its lock."""
    if root.exists() and not root.is_dir():
        raise UserError(f"{root}: expected a folder for the run, found a file. Set another name=... or --runs.")
    if not root.exists() or (root / "cascade.yaml").exists():
        return
    others = [path.name for path in root.iterdir() if path.name not in (".lock", ".cascade.yaml.tmp")]
    if others:
        raise UserError(
            f"{root}: expected a run folder or none, found other files ({min(others)}). Set another name=... or --runs."
        )


@contextmanager
def _locked(root: Path) -> Iterator[int]:
    descriptor = os.open(root / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        _take_lock(descriptor, root)
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield descriptor
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, root: Path) -> None:
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = (root / ".lock").read_text()
                raise UserError(
                    f"{root}: another launcher (pid {holder}) is at work here. Wait for it, or stop it."
                ) from None
        time.sleep(0.05)
