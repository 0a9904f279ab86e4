"""Scores in the benchmarks of the cascade's suites: answers of the stage's own engines, numbers of `cascade eval`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.rl_stages.benchmarks.benchmark import THINKING, Benchmark
from cascade_rl.rl_stages.benchmarks.of_cascade import SUITES, benchmarks_of
from cascade_rl.rl_stages.benchmarks.results import Group, Result, Source, results
from cascade_rl.rl_stages.config.room import Room
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.evaluation.heldout import Evaluated, judged
from cascade_rl.rl_stages.rank_zero import RankZero
from cascade_rl.rl_stages.run.sample_record import write_samples
from cascade_rl.rl_stages.scoring.infrastructure import require_infrastructure
from cascade_rl.rl_stages.scoring.scored_sample import Sample, heldout_record

Answers = Mapping[str, Sequence[Sequence[Sample]]]
"""Mode -> the answers to each prompt."""


def benchmark_scores(session: Evaluated, model: str, when: str) -> list[Result]:
    """Of `model`, whose weights the engines have "before" or "after" the stage. Collective.

    The answers are kept in the stage's folder. A prompt with an answer that could not be scored is in no number. Raises
    InfrastructureFailures if the share of such answers is above `evaluation.max_infrastructure_failures`.
    """
    benchmarks = session.on_rank0(lambda _: list(_fitting(session)), _told)
    return [result for benchmark in benchmarks for result in _measured(session, benchmark, model, when)]


def _measured(session: Evaluated, benchmark: Benchmark, model: str, when: str) -> list[Result]:
    asked = {mode: _in_mode(benchmark, mode) for mode in benchmark.modes}
    batches = {f"benchmark-{benchmark.name}-{mode}": tasks for mode, tasks in asked.items()}
    sampled, total = benchmark.sampled, session.cascade.evaluation_room.total
    sampling = Sampling(sampled.max_new_tokens, sampled.temperature, sampled.top_p, max_total_tokens=total)
    drawn = session.draw_all(batches, sampled.answers, sampling, heldout=True)
    bound = session.cascade.evaluation.max_infrastructure_failures

    def numbers(zero: RankZero) -> list[Result]:
        groups = zip(asked.values(), drawn.values(), strict=True)
        answers = {mode: judged(zero, *group) for mode, group in zip(asked, groups, strict=True)}
        every = [sample for groups in answers.values() for group in groups for sample in group]
        write_samples(zero.folder.benchmark_answers(when, benchmark.name), [heldout_record(one) for one in every])
        require_infrastructure([(one.rollout.id, one.verdict) for one in every], bound, benchmark.name)
        return results(benchmark, _groups(answers, model))

    return session.on_rank0(numbers)


def _fitting(session: Evaluated) -> Iterator[Benchmark]:
    """With the prompts that leave room for a whole answer in all modes."""
    settings, total = session.cascade.evaluation, session.cascade.evaluation_room.total
    for benchmark in benchmarks_of(settings):
        longest, key = benchmark.sampled.max_new_tokens, f"suites[{benchmark.name}].max_new_tokens"
        room = Room("evaluation", total, longest, settings.overlong_prompts, key)
        measured = session.prompt_room(room, _thinking_fraction(benchmark.modes))
        fitting = {name: task for name, task in benchmark.tasks.items() if measured.admits(task)}
        if not fitting:
            raise UserError(
                f"{SUITES}: {benchmark.name}: expected prompts that leave {longest:,} of {total:,} tokens to an "
                "answer; found none: set its max_new_tokens, or raise rollout.max_model_len"
            )
        yield replace(benchmark, tasks=fitting)


def _told(benchmarks: Sequence[Benchmark]) -> list[Benchmark]:
    """What the other ranks know of them: how many prompts there are."""
    return [replace(one, tasks={name: Task(name, "", (), {}) for name in one.tasks}) for one in benchmarks]


def _in_mode(benchmark: Benchmark, mode: str) -> list[Task]:
    return [replace(task, thinking=THINKING[mode]) for task in benchmark.tasks.values()]


def _thinking_fraction(modes: Sequence[str]) -> float | None:
    return None if "template" in modes else fmean(mode == "on" for mode in modes)


def _groups(answers: Answers, model: str) -> Iterator[Group]:
    """The prompts whose answers all have a score."""
    for mode, groups in answers.items():
        for group in groups:
            if all(sample.reward is not None for sample in group):
                yield (Source(model, mode), group[0].task.id), [_row(sample) for sample in group]


def _row(sample: Sample) -> dict[str, Any]:
    tokens = len(sample.rollout.token_ids)
    return {"answer": sample.text, "score": sample.reward, "finish": sample.rollout.finish, "tokens": tokens}
