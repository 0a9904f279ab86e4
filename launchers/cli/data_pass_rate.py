"""`cascade data pass-rate`: samples answers to each task with a model, scores them, and adds the result to the rows.

    OUT             the rows, with `pass_rate` and `answer_scores`
    OUT.answers     JSON lines: how was sampled, then the scores of each row as they come
    OUT.engine.log  what vLLM says

A second run continues OUT.answers: rows whose scores are there are not sampled again.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers import row_options
from cascade_rl.launchers.evaluate import sampler
from cascade_rl.rl_stages.data.difficulty import pass_rate
from cascade_rl.rl_stages.data.rows import Row, scan_rows
from cascade_rl.rl_stages.data.sift import Report, replacing
from cascade_rl.rl_stages.run.durable_file import JsonLines

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task
    from cascade_rl.rl_stages.scoring.answering import Answered
    from cascade_rl.rl_stages.tasks.row_form import RowForm

LINE_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER", help="Hugging Face model folder")
    row_options.add_arguments(parser)
    sampler.add_arguments(parser)


def run(options: argparse.Namespace, tell: Callable[[Report, str, str], None]) -> int:
    """Exit code 1 if a row has no pass rate. Rows whose scores are known are not sampled again."""
    answers = _Answers(JsonLines(Path(f"{options.out}.answers")))
    answers.open(_settings(options))
    tasks = _tasks(options.sources, row_options.row_form(options), answers)
    if first := next(tasks, None):
        _sample(options, chain([first], tasks), answers)
    report = Report()
    with replacing(options.out) as file:
        for where, row in _rated(options.sources, answers, report):
            report.kept[where.rpartition(":")[0]] += 1
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    kept, dropped = report.kept.total(), report.dropped.total()
    tell(report, f"{options.out}: {kept:,} rows have a pass rate, {dropped:,} have none", "without a pass rate")
    return 1 if dropped else 0


@dataclass
class _Answers:
    """The scores of each row by its digest, and why a row of this run has none."""

    log: JsonLines
    scores: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def open(self, settings: Mapping[str, Any]) -> None:
        """Reads the log, or begins it. UserError if its answers were sampled in another way."""
        rows = self.log.rows()
        if not rows:
            self.log.append(settings)
        elif rows[0] != settings:
            raise UserError(
                f"{self.log.path}: expected answers sampled with {settings}; found {rows[0]}: remove it or change --out"
            )
        self.scores = {row["row"]: row["scores"] for row in rows[1:]}

    def add(self, found: "Answered") -> None:
        if found.unscored:
            self.failed[found.task.id] = found.unscored
            return
        self.log.append({"row": found.task.id, "scores": found.scores})
        self.scores[found.task.id] = found.scores


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """What the scores depend on, besides the rows."""
    read = {"domain": options.domain, "column": options.column}
    settings = {"model": str(options.model.resolve())} | sampler.sampled_of(options)._asdict()
    return settings | {name: value for name, value in read.items() if value}


def _tasks(sources: list[str], form: "RowForm", answers: _Answers) -> Iterator["Task"]:
    """The tasks without scores, each once. Its id is the row's digest."""
    from cascade_rl.rl_stages.tasks.load_tasks import parse_task

    seen = set(answers.scores)
    for source in sources:
        for where, row in scan_rows(source):
            if isinstance(row, UserError) or (name := _digest(row)) in seen:
                continue
            seen.add(name)
            try:
                yield parse_task(row, where, name, form)
            except UserError as error:
                answers.failed[name] = str(error).removeprefix(f"{where}: ")


def _digest(row: Row) -> str:
    return hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=16).hexdigest()


def _sample(options: argparse.Namespace, tasks: Iterator["Task"], answers: _Answers) -> None:
    from cascade_rl.rl_stages.rewards.verifiers.swe_agentless import SweAgentlessVerifier

    # Cascade 1 selects SWE prompts by the similarity to the golden patch (arXiv 2512.13607, section 4)
    makers = {"swe_agentless": partial(SweAgentlessVerifier, lexical="difflib")}
    sampled, log = sampler.sampled_of(options), Path(f"{options.out}.engine.log")
    with sampler.engines(options.model, options, [sampled], log, makers) as started:
        _record(started.answering(sampled)(tasks), answers)


def _record(found: Iterator["Answered"], answers: _Answers) -> None:
    """Adds the scores as they come, and says now and then how many there are."""
    said = time.monotonic()
    for answered in found:
        answers.add(answered)
        if time.monotonic() > said + LINE_SECONDS:
            said = time.monotonic()
            print(f"{len(answers.scores):,} rows have scores, {len(answers.failed):,} have none", flush=True)


def _rated(sources: list[str], answers: _Answers, report: Report) -> Iterator[tuple[str, Row]]:
    """The rows with their scores. The others are named in the report."""
    for source in sources:
        for where, row in scan_rows(source):
            if isinstance(row, UserError):
                report.refuse(where, row)
            elif (name := _digest(row)) in answers.scores:
                scores = answers.scores[name]
                yield where, {**row, "pass_rate": pass_rate(scores), "answer_scores": scores}
            else:
                report.refuse(where, UserError(answers.failed[name]))
