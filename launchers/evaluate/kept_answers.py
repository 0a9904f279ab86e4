"""The answers of an evaluation on disk, so that the same command goes on where it was.

settings.json    what the answers depend on
answers.jsonl    a line an answer, as `cascade verify` reads it, with model, mode, domain, outcome and tokens
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.benchmarks.results import Key, Source
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.run.durable_file import JsonLines, read_json, write_json

LOG = "answers.jsonl"


class Kept(NamedTuple):
    """An answer with its verdict. `tokens` are all that it cost."""

    text: str
    verdict: Verdict
    tokens: int
    finish: str


@dataclass(frozen=True)
class KeptAnswers:
    """The groups of answers in a folder. A group that a kill cut off is dropped, and answered again.

    known  who has answered what, so that the answers themselves are read once, at the end
    """

    folder: Path
    known: set[Key]

    @classmethod
    def open(cls, folder: Path, settings: Mapping[str, Any]) -> "KeptAnswers":
        """Raises UserError if the folder has answers that were sampled in another way."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "settings.json"
        if not path.exists():
            write_json(path, dict(settings))
        elif (found := read_json(path)) != settings:
            changed = ", ".join(f"{key} {found.get(key)!r}" for key in settings if found.get(key) != settings[key])
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

    @property
    def _log(self) -> JsonLines:
        return JsonLines(self.folder / LOG)


def _rows(source: Source, task: Task, answers: Sequence[Kept]) -> Iterator[dict[str, Any]]:
    for number, (text, verdict, tokens, finish) in enumerate(answers):
        told = {"score": verdict.score, "outcome": verdict.outcome.value, "detail": verdict.detail}
        who = {"model": source.model, "mode": source.mode, "domain": task.domain, "sample": number}
        yield {"id": task.id, "answer": text} | told | {"tokens": tokens, "finish": finish} | who


def _key(row: Mapping[str, Any]) -> Key:
    return Source(row["model"], row["mode"]), row["id"]


def _place(row: Mapping[str, Any]) -> tuple[Key, int]:
    return _key(row), row["sample"]
