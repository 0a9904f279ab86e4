"""`cascade eval`: a model's answers to rows, several each, scored by the rows' verifiers, with confidence intervals.

OUT/settings.json, OUT/answers.jsonl    see kept_answers.py; the same command goes on where it was
OUT/results.json                        the numbers of the tables
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.evaluate import sampler
from cascade_rl.launchers.evaluate.kept_answers import KeptAnswers, Source
from cascade_rl.launchers.evaluate.results import plain, results, show
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.run.durable_file import write_json
from cascade_rl.rl_stages.tasks.load_tasks import read_tasks
from cascade_rl.rl_stages.tasks.row_form import RowForm

MODES: dict[str, tuple[str, ...]] = {name: (name,) for name in ("template", "on", "off")} | {"both": ("on", "off")}
THINKING = {"template": None, "on": True, "off": False}


def run(arguments: Sequence[str]) -> int:
    """Exit code 1 if a prompt did not fit or an answer could not be scored."""
    options = _parser().parse_args(arguments)
    if options.answers < 1:
        raise UserError(f"expected --answers of at least 1; found {options.answers}")
    tasks = _tasks(options)
    kept = KeptAnswers.open(options.out, sampler.settings(options))
    failed = [told for model in options.model for told in _answer(options, model, tasks, kept)]
    sources = {Source(str(model), mode) for model in options.model for mode in MODES[options.thinking]}
    asked = [(key, rows) for key, rows in kept.groups() if key[0] in sources and key[1] in tasks]
    found = results(asked, tasks, options.answers)
    if found:
        show(found)
    write_json(options.out / "results.json", plain(found))
    for told in failed:
        print(f"without a score: {told}")
    print(f"{options.out}: {len(asked):,} prompts with {options.answers} answers each; {len(failed):,} without a score")
    return int(bool(failed))


def _parser() -> argparse.ArgumentParser:
    description = "Samples a model's answers to rows and scores them. Exit code 1 if one has no score."
    parser = argparse.ArgumentParser(prog="cascade eval", description=description, allow_abbrev=False)
    parser.add_argument("rows", nargs="+", metavar="ROWS", help="a file, a folder, hf:owner/name or generate:DOMAIN")
    several = "Hugging Face model folder; repeat to compare several"
    parser.add_argument("--model", type=Path, action="append", required=True, metavar="FOLDER", help=several)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where answers and results are kept")
    modes = "the mode that the chat template is asked for (default: its own)"
    parser.add_argument("--thinking", choices=MODES, default="template", help=modes)
    plain_rows = "domain of rows with a plain prompt: math, python:pkg.mod:fn, ..."
    parser.add_argument("--domain", metavar="NAME", help=plain_rows)
    column = "a field and the column that has it, such as prompt=question; can be repeated"
    parser.add_argument("--column", action="append", default=[], metavar="FIELD=COLUMN", help=column)
    sampler.add_arguments(parser)
    return parser


def _tasks(options: argparse.Namespace) -> dict[str, Task]:
    """All tasks of the rows, by id. Raises UserError for an id that two of them have."""
    wrong = [pair for pair in options.column if "=" not in pair]
    if wrong:
        raise UserError(f"--column: expected FIELD=COLUMN; found {wrong[0]!r}")
    rewards = [*options.reward, *([options.domain] if options.domain else [])]
    form = RowForm(rewards, options.domain, dict(pair.split("=", 1) for pair in options.column))
    tasks: dict[str, Task] = {}
    for source in options.rows:
        for task in read_tasks(source, form):
            if task.id in tasks:
                raise UserError(f"{source}: expected rows of files with different names; found a second {task.id}")
            tasks[task.id] = task
    if not tasks:
        raise UserError(f"expected rows in {', '.join(options.rows)}; found none: add some")
    return tasks


def _answer(options: argparse.Namespace, model: Path, tasks: dict[str, Task], kept: KeptAnswers) -> Iterator[str]:
    """Answers what is not kept yet. Yields what has no score, and why."""
    sources = [Source(str(model), mode) for mode in MODES[options.thinking]]
    missing = {
        json.dumps([source.mode, name]): (source, task)
        for source in sources
        for name, task in tasks.items()
        if (source, name) not in kept.known
    }
    if not missing:
        return
    asked = [replace(task, id=key, thinking=THINKING[source.mode]) for key, (source, task) in missing.items()]
    with sampler.answering(model, options, options.out / "engine.log") as answering:
        for answered in answering(asked):
            source, task = missing[answered.task.id]
            if answered.unscored:
                yield f"{task.id} by {source}: {answered.unscored}"
            else:
                kept.add(source, answered._replace(task=task))
