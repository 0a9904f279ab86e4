"""The benchmarks of a cascade's `evaluation.suites`."""

from collections.abc import Iterator
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.benchmarks.benchmark import Benchmark
from cascade_rl.rl_stages.benchmarks.suite import Asked, read_suite
from cascade_rl.rl_stages.config.base import Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.tasks.domains import domain_named

SUITES = "evaluation.suites"


def benchmarks_of(evaluation: Evaluation) -> Iterator[Benchmark]:
    """In order, each with its rows. Raises UserError as `read_suite`."""
    for suite in evaluation.suites:
        length = {} if suite.max_new_tokens is None else {"max_new_tokens": suite.max_new_tokens}
        asked = Asked(suite.only, length, suite.answers, suite.thinking)
        yield from read_suite(suite.suite, Path(suite.folder), asked)


def check_benchmarks(cascade: Cascade) -> None:
    """Raises UserError for a benchmark that the stages cannot measure. Reads all rows."""
    seen, total = set[str](), cascade.evaluation_room.total if cascade.evaluation.suites else 0
    for benchmark in benchmarks_of(cascade.evaluation):
        if refused := _refusal(benchmark, cascade.evaluation, total, benchmark.name in seen):
            raise UserError(f"{SUITES}: {benchmark.name}: {refused}")
        seen.add(benchmark.name)


def _refusal(benchmark: Benchmark, evaluation: Evaluation, total: int, again: bool) -> str:
    """What was expected, what was found and what to change; empty for one that can be measured."""
    longest = benchmark.sampled.max_new_tokens
    unmeasured = {task.domain for task in benchmark.tasks.values()} & set(evaluation.unmeasured)
    judged = [task.id for task in benchmark.tasks.values() if domain_named(task.domain).needs_judge(task.metadata)]
    if again:
        return "expected one benchmark of that name; found a second: leave it out with `only`"
    if benchmark.method:
        return f"expected sampled answers; found the method {benchmark.method}: play it with `cascade eval`"
    if longest >= total:
        return (
            f"expected answers of less than {total:,} tokens, the smallest rollout.max_model_len of all stages; found "
            f"max_new_tokens = {longest:,}: set it in {SUITES}, or raise rollout.max_model_len"
        )
    if unmeasured:
        return f"expected domains with a verifier; found {min(unmeasured)}, which evaluation.unmeasured has"
    if judged:
        return f"expected rows that rules score; found {judged[0]}, which needs a judge: measure it with `cascade eval`"
    return ""
