"""`cascade eval`: a model's answers to rows, several each, scored by the rows' verifiers, with confidence intervals.

OUT/settings.json, OUT/answers.jsonl    see kept_answers.py; the same command goes on where it was
OUT/results.json                        the numbers of the tables
OUT/report.html                         the same numbers, and the answers to be read

A suite has a folder in OUT for the answers to each of its benchmarks.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers import row_options
from cascade_rl.launchers.evaluate import judges, sampler
from cascade_rl.launchers.evaluate.kept_answers import Kept, KeptAnswers
from cascade_rl.launchers.evaluate.page import write_page
from cascade_rl.launchers.evaluate.tables import show
from cascade_rl.launchers.evaluate.test_time.methods import METHODS, Method
from cascade_rl.rl_stages.benchmarks.benchmark import MODES, THINKING, Benchmark
from cascade_rl.rl_stages.benchmarks.results import Group, Source, plain, results
from cascade_rl.rl_stages.benchmarks.suite import Asked, read_suite
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.environments.python_tool import CALLS, with_tool
from cascade_rl.rl_stages.run.durable_file import write_json
from cascade_rl.rl_stages.tasks.load_tasks import read_tasks

if TYPE_CHECKING:
    from cascade_rl.launchers.evaluate.test_time.play import Played

WITH_PYTHON = "math_python"
Missing = dict[str, tuple[Source, Task]]
Known = tuple[str, Sequence[Kept], str]
"""Of a task: its id, its answers, and why one has no score."""


def run(arguments: Sequence[str]) -> int:
    """Exit code 1 if a prompt did not fit or an answer could not be scored."""
    options = _parser().parse_args(arguments)
    asked, judge = _benchmarks(options), judges.judge_of(options)
    asked = [_with_python(one) for one in asked] if options.python_tool else asked
    for benchmark in asked:
        judges.check_judged(benchmark.tasks.values(), judge)
    kept = [KeptAnswers.open(options.out / one.name, _settings(one, judge)) for one in asked]
    failed = [told for model in options.model for told in _answer(options, model, asked, kept)]
    found = [
        result
        for benchmark, answers in zip(asked, kept, strict=True)
        for result in results(benchmark, _groups(options, benchmark, answers))
    ]
    if found:
        show(found, asked)
    write_json(options.out / "results.json", plain(found))
    write_page(options.out, options.model, plain(found), [path for answers in kept for path in answers.samples()])
    for told in failed:
        print(f"without a score: {told}")
    prompts = sum(len(result.means) for result in found)
    print(f"{options.out}: {prompts:,} prompts answered; {len(failed):,} without a score")
    return int(bool(failed))


def _parser() -> argparse.ArgumentParser:
    description = "Samples a model's answers to rows and scores them. Exit code 1 if one has no score."
    parser = argparse.ArgumentParser(prog="cascade eval", description=description, allow_abbrev=False)
    parser.add_argument("rows", nargs="*", metavar="ROWS", help="a file, a folder, hf:owner/name or generate:DOMAIN")
    suite = "instead of ROWS: the benchmarks of a paper (cascade2), or of a file.toml of your own"
    parser.add_argument("--suite", metavar="NAME", help=suite)
    parser.add_argument("--benchmarks", type=Path, metavar="FOLDER", help="where the rows of a suite are")
    parser.add_argument("--only", action="append", default=[], metavar="BENCHMARK", help="of the suite; repeatable")
    several = "Hugging Face model folder; repeat to compare several"
    parser.add_argument("--model", type=Path, action="append", required=True, metavar="FOLDER", help=several)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where answers and results are kept")
    modes = "the mode that the chat template is asked for (default: its own, or the suite's)"
    parser.add_argument("--thinking", choices=MODES, help=modes)
    methods = f"how an answer is found ({', '.join(METHODS)}), with settings: vote:generations=16 (default: sampled)"
    parser.add_argument("--method", metavar="NAME", help=methods)
    tool = "the model may call a Python interpreter, as often as the paper's. Rows of math alone"
    parser.add_argument("--python-tool", action="store_true", help=tool)
    row_options.add_arguments(parser)
    sampler.add_arguments(parser)
    judges.add_arguments(parser)
    return parser


def _settings(benchmark: Benchmark, judge: RewardModel | None) -> dict[str, Any]:
    """What the answers and their scores depend on, besides model and tasks."""
    method = {"method": Method.parse(benchmark.method).told} if benchmark.method else {}
    judged = {"judge": judge.model} if judge and judges.judged_domains(benchmark.tasks.values()) else {}
    tool = {"python_tool": CALLS} if any(task.domain == WITH_PYTHON for task in benchmark.tasks.values()) else {}
    return benchmark.sampled._asdict() | method | judged | tool


def _benchmarks(options: argparse.Namespace) -> list[Benchmark]:
    if options.suite and options.rows:
        raise UserError(f"expected ROWS or --suite; found {options.rows[0]} and {options.suite}: leave one out")
    if not options.suite:
        modes = MODES[options.thinking or "template"]
        return [Benchmark("", _tasks(options), sampler.sampled_of(options), modes, options.method)]
    if options.benchmarks is None:
        raise UserError("expected --benchmarks, the folder with the rows of the suite; found none: add it")
    asked = Asked(options.only, sampler.given(options), thinking=options.thinking, method=options.method)
    return list(read_suite(options.suite, options.benchmarks, asked))


def _with_python(benchmark: Benchmark) -> Benchmark:
    """Raises UserError for what has no interpreter: other domains, and methods, which ask for single turns."""
    if benchmark.method:
        raise UserError(f"expected --python-tool or a method; found {benchmark.method} too: leave one out")
    if others := {task.domain for task in benchmark.tasks.values()} - {"math"}:
        raise UserError(f"--python-tool: expected rows of math alone; found {min(others)}: leave them out with --only")
    return replace(benchmark, tasks={name: with_tool(task, WITH_PYTHON) for name, task in benchmark.tasks.items()})


def _tasks(options: argparse.Namespace) -> dict[str, Task]:
    """All tasks of the rows, by id. Raises UserError for an id that two of them have."""
    form = row_options.row_form(options)
    tasks: dict[str, Task] = {}
    for source in options.rows:
        for task in read_tasks(source, form):
            if task.id in tasks:
                raise UserError(f"{source}: expected rows of files with different names; found a second {task.id}")
            tasks[task.id] = task
    if not tasks:
        raise UserError(f"expected rows in {', '.join(options.rows)}; found none: add some")
    return tasks


def _sources(model: Path, benchmark: Benchmark) -> list[Source]:
    return [Source(str(model), mode) for mode in benchmark.modes]


def _groups(options: argparse.Namespace, benchmark: Benchmark, kept: KeptAnswers) -> list[Group]:
    """Those of the models, modes and tasks that are asked for now."""
    sources = {source for model in options.model for source in _sources(model, benchmark)}
    return [(key, rows) for key, rows in kept.groups() if key[0] in sources and key[1] in benchmark.tasks]


def _answer(
    options: argparse.Namespace, model: Path, asked: Sequence[Benchmark], kept: Sequence[KeptAnswers]
) -> Iterator[str]:
    """Answers what is not kept yet. Yields what has no score, and why. The engines start with the first prompt."""
    with ExitStack() as stack:

        @cache
        def start() -> sampler.Started:
            all_sampled = [benchmark.sampled for benchmark in asked]
            domains = judges.judged_domains(task for benchmark in asked for task in benchmark.tasks.values())
            makers = judges.makers(domains, judges.judge_of(options))
            log = options.out / "engine.log"
            return stack.enter_context(sampler.engines(model, options, all_sampled, log, makers))

        for benchmark, answers in zip(asked, kept, strict=True):
            stack.callback(answers.close)
            if missing := _missing(benchmark, _sources(model, benchmark), answers):
                yield from _record(start(), benchmark, missing, answers)


def _missing(benchmark: Benchmark, sources: Sequence[Source], kept: KeptAnswers) -> Missing:
    return {
        json.dumps([source.mode, name]): (source, task)
        for source in sources
        for name, task in benchmark.tasks.items()
        if (source, name) not in kept.known
    }


def _record(started: sampler.Started, benchmark: Benchmark, missing: Missing, kept: KeptAnswers) -> Iterator[str]:
    asked = [replace(task, id=key, thinking=THINKING[source.mode]) for key, (source, task) in missing.items()]
    answer = _played if benchmark.method else _answered
    for key, answers, why in answer(started, benchmark, asked):
        source, task = missing[key]
        if why:
            yield f"{task.id} by {source}: {why}"
        else:
            kept.add(source, task, answers)


def _answered(started: sampler.Started, benchmark: Benchmark, asked: Sequence[Task]) -> Iterator[Known]:
    for answered in started.answering(benchmark.sampled)(asked):
        pairs = zip(answered.rollouts, answered.answers, strict=bool(answered.answers))
        answers = [Kept(rollout, answer, len(rollout.token_ids)) for rollout, answer in pairs]
        yield answered.task.id, answers, answered.unscored


def _played(started: sampler.Started, benchmark: Benchmark, asked: Sequence[Task]) -> Iterator[Known]:
    assert benchmark.method
    found: defaultdict[str, list[Played]] = defaultdict(list)
    with closing(started.playing(benchmark.sampled, Method.parse(benchmark.method))) as playing:
        for played in playing(asked):
            found[played.task.id].append(played)
            if len(plays := found[played.task.id]) == benchmark.sampled.answers:
                plays = sorted(found.pop(played.task.id), key=lambda played: played.number)
                kept = [Kept(one.rollout, one.answer, one.spent) for one in plays if one.rollout and one.answer]
                yield played.task.id, kept, next(filter(None, (played.unscored for played in plays)), "")
