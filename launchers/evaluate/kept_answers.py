"""The answers of an evaluation on disk, so that the same command goes on where it was.

settings.json    what the answers depend on
answers.jsonl    a line an answer, as `cascade verify` reads it, with model, mode, domain, outcome and tokens
samples/*.arrows the answers as a run keeps its samples: with token ids and log-probs, for the report
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Rollout
from cascade_rl.launchers.report.sample_stream import SUFFIX, SampleStream
from cascade_rl.rl_stages.benchmarks.benchmark import THINKING
from cascade_rl.rl_stages.benchmarks.results import Key, Source
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.run.durable_file import JsonLines, read_json, write_json
from cascade_rl.rl_stages.scoring.pending_group import Answer
from cascade_rl.rl_stages.scoring.scored_sample import Sample, heldout_record

LOG, SAMPLES = "answers.jsonl", "samples"


class Kept(NamedTuple):
    """An answer with its verdict. `tokens` are all that it cost: those of a method are more than its own."""

    rollout: Rollout
    answer: Answer
    tokens: int


@dataclass(frozen=True)
class KeptAnswers:
    """The groups of answers in a folder. A group that a kill cut off is dropped, and answered again.

    known    who has answered what, so that the answers themselves are read once, at the end
    streams  the samples of this command, by source. What is in them is in answers.jsonl too, and not the other way
             round: a kill may come between
    """

    folder: Path
    known: set[Key]
    streams: dict[Source, SampleStream] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, settings: Mapping[str, Any]) -> "KeptAnswers":
        """Raises UserError if the folder has answers that were sampled in another way."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "settings.json"
        if not path.exists():
            write_json(path, dict(settings))
        elif (found := read_json(path)) != settings:
            keys = [key for key in {**settings, **found} if found.get(key) != settings.get(key)]
            changed = ", ".join(f"{key} {found.get(key)!r}" for key in keys)
            raise UserError(f"{folder}: expected answers sampled as asked now; found {changed}: choose another --out")
        log = JsonLines(folder / LOG)
        whole = {key for key, count in Counter(map(_key, log.rows())).items() if count == settings["answers"]}
        log.keep(lambda row: _key(row) in whole)
        return cls(folder, whole)

    def groups(self) -> Iterator[tuple[Key, list[dict[str, Any]]]]:
        """Each prompt's answers, in their order."""
        for key, rows in groupby(sorted(self._log.rows(), key=_place), key=_key):
            yield key, list(rows)

    def add(self, source: Source, task: Task, answers: Sequence[Kept]) -> None:
        for row in _rows(source, task, answers):
            self._log.append(row)
        self.known.add((source, task.id))
        asked = replace(task, thinking=THINKING[source.mode])
        samples = (Sample(asked, kept.rollout, *kept.answer) for kept in answers)
        records = [replace(heldout_record(one), id=f"{task.id}/{number}") for number, one in enumerate(samples)]
        self._stream(source).append(records)

    def close(self) -> None:
        """Ends the files that are open. More answers, such as those of the next model, go into others."""
        while self.streams:
            self.streams.popitem()[1].close()

    def samples(self) -> list[Path]:
        """Files of one source each, in the order of the commands."""
        return sorted((self.folder / SAMPLES).glob(f"*{SUFFIX}"))

    def _stream(self, source: Source) -> SampleStream:
        if source not in self.streams:
            (self.folder / SAMPLES).mkdir(exist_ok=True)
            path = self.folder / SAMPLES / f"{len(self.samples()):06d}{SUFFIX}"
            self.streams[source] = SampleStream(path, source._asdict())
        return self.streams[source]

    @property
    def _log(self) -> JsonLines:
        return JsonLines(self.folder / LOG)


def _rows(source: Source, task: Task, answers: Sequence[Kept]) -> Iterator[dict[str, Any]]:
    for number, (rollout, (text, verdict), tokens) in enumerate(answers):
        told = {"score": verdict.score, "outcome": verdict.outcome.value, "detail": verdict.detail}
        who = {"model": source.model, "mode": source.mode, "domain": task.domain, "sample": number}
        yield {"id": task.id, "answer": text} | told | {"tokens": tokens, "finish": rollout.finish} | who


def _key(row: Mapping[str, Any]) -> Key:
    return Source(row["model"], row["mode"]), row["id"]


def _place(row: Mapping[str, Any]) -> tuple[Key, int]:
    return _key(row), row["sample"]
