"""`cascade verify-published FOLDER`: what our verifiers say about answers that others have published with a score.

FOLDER holds the installed packages (`make published-answers`). A source that is not there is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from itertools import groupby
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.verify.answers import Given, Name
from cascade_rl.launchers.verify.matching import Pair
from cascade_rl.launchers.verify.published import (
    bfcl,
    bfcl_services,
    bfcl_turns,
    gym_tests,
    human_eval,
    instructions,
    math_pairs,
    reasoning_datasets,
    recorded,
    schema_suite,
    yaml_scalars,
)
from cascade_rl.launchers.verify.published.case import Case, Source, together
from cascade_rl.launchers.verify.published.reasons import reason
from cascade_rl.launchers.verify.rescore import SAME, rescore
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.run.durable_file import write_json
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

SOURCES = (
    Source(
        "nemo-gym",
        together(recorded.cases, gym_tests.cases),
        {"mcqa": 0.9, "mcqa, its tests": 0.93, "nemo_fabric_deepagents_reasoning_gym": 0.4}
        | dict.fromkeys(("structured_outputs", "workplace_assistant", "gpqa_diamond"), 0.0)
        | {"gpqa_diamond, its tests": 0.66, "ifbench, its tests": 0.88, "math_with_judge, its tests": 0.8}
        | {"single_step_tool_use_with_argument_comparison, its tests": 0.83, "workplace_assistant, its tests": 0.5},
    ),
    Source(
        "bfcl-eval",
        together(bfcl.cases, bfcl_turns.cases, bfcl_services.cases),
        {
            f"multi_turn_base, states {kind}": share
            for kind, share in (
                ("in reverse", 0.46),
                ("with another name", 0.98),
                ("with another value", 0.95),
                ("without a call", 0.99),
            )
        },
    ),
    Source(
        "math-verify",
        math_pairs.cases,
        {"test_all": 0.9, "test_boxed": 0.0, "test_numina_cases": 0.95, "test_yujianll": 0.92},
    ),
    Source("reasoning-gym", reasoning_datasets.cases),
    Source("human-eval", human_eval.cases),
    Source("if-verifiable", instructions.cases, {"ifbench": 0.95, "ifeval": 0.99}),
    Source(
        "jsonschema",
        schema_suite.cases,
        {"documents, valid": 0.8, "documents, invalid": 0.86, "formats, invalid": 0.82},
    ),
    Source("yamlcore", yaml_scalars.cases, {"scalars": 0.87}),
)


@dataclass(frozen=True)
class Difference:
    """Scores of the publisher and of ours, which is None for a row that is refused, and why."""

    id: str
    theirs: float
    ours: float | None
    detail: str
    reason: str


@dataclass(frozen=True)
class Agreement:
    """What was found in one group of a source. `rate`: checks per second in the whole source."""

    source: str
    version: str
    group: str
    answers: int
    rate: float
    differences: tuple[Difference, ...]

    @property
    def share(self) -> float:
        return 1 - len(self.differences) / self.answers


def run(arguments: Sequence[str]) -> int:
    """Exit code 1 if the agreement of a group is below its floor, or a difference is not explained."""
    options = _parser().parse_args(arguments)
    found = [agreement for source in SOURCES for agreement in agreements(options.folder, source)]
    if not found:
        packages = ", ".join(source.package for source in SOURCES)
        raise UserError(f"{options.folder}: expected one of {packages}; found none. Run `make published-answers`")
    print("\n".join(table(found)))
    for agreement in found:
        print("\n".join(told(agreement)))
    if options.json:
        date = time.strftime("%Y-%m-%d")
        write_json(options.json, {"date": date, "groups": list(map(asdict, found))})
    low = [f"{one.source} {one.group}" for one in found if one.share < floor(one)]
    if low:
        print(f"below the floor: {', '.join(low)}")
    return int(bool(low) or not all(difference.reason for one in found for difference in one.differences))


def _parser() -> argparse.ArgumentParser:
    description = (
        "Scores published answers with our verifiers, and shows where the scores part from the published ones. Exit "
        "code 1 if fewer agree than must, or a difference is not explained."
    )
    parser = argparse.ArgumentParser(prog="cascade verify-published", description=description, allow_abbrev=False)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where `make published-answers` has put packages")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    return parser


def agreements(folder: Path, source: Source) -> Iterator[Agreement]:
    """Of each group of a source. All of it is scored at once, so that a verifier starts once."""
    cases = sorted(source.cases(folder), key=_group)
    started = time.perf_counter()
    scores = list(_scored(cases))
    rate = len(cases) / (time.perf_counter() - started)
    for group, scored in groupby(zip(cases, scores, strict=True), key=lambda pair: pair[0].group):
        pairs = list(scored)
        differing = tuple(
            Difference(case.id, case.score, ours, detail, reason(source.package, group, f"{case.id}: {detail}"))
            for case, (ours, detail) in pairs
            if ours is None or abs(ours - case.score) > SAME
        )
        yield Agreement(source.package, version_of(source.package, folder), group, len(pairs), rate, differing)


def version_of(package: str, folder: Path) -> str:
    """Of an installed package, or of an unpacked source distribution, whose folder has it in its name."""
    installed = {found.metadata["Name"].replace("_", "-"): found.version for found in distributions(path=[str(folder)])}
    unpacked = dict(path.parent.name.replace("_", "-").rsplit("-", 1) for path in folder.glob("*-*/PKG-INFO"))
    return (unpacked | installed).get(package, "?")


def _group(case: Case) -> str:
    return case.group


def _scored(cases: Sequence[Case]) -> Iterator[tuple[float | None, str]]:
    """Our score of each, None for a row that is refused or an answer without one, and why."""
    tasks = list(map(_task, cases))
    pairs = [
        Pair(task, Given(case.id, Name("id", case.id), case.turns))
        for case, task in zip(cases, tasks, strict=True)
        if isinstance(task, Task)
    ]
    verdicts = iter(rescore(pairs))
    for task in tasks:
        verdict = next(verdicts).verdict if isinstance(task, Task) else None
        yield (verdict.score, verdict.told) if verdict else (None, str(task))


def _task(case: Case) -> Task | UserError:
    try:
        return parse_task(case.row, case.id, case.id)
    except UserError as error:
        return error


def floor(agreement: Agreement) -> float:
    (source,) = (source for source in SOURCES if source.package == agreement.source)
    return source.floors.get(agreement.group, 1.0)


def table(found: Sequence[Agreement]) -> Iterator[str]:
    """In Markdown, with a line for each group."""
    yield "| source | group | answers | agree | differ, explained / not | checks/s |"
    yield "|---|---|---:|---:|---:|---:|"
    for one in found:
        explained = sum(bool(difference.reason) for difference in one.differences)
        differing = f"{explained} / {len(one.differences) - explained}"
        counts = f"{one.answers:,} | {one.answers - len(one.differences):,} | {differing}"
        yield f"| {one.source} {one.version} | {one.group} | {counts} | {one.rate:,.0f} |"


def told(agreement: Agreement) -> Iterator[str]:
    """Each difference, with its reason."""
    for one in agreement.differences:
        ours = "none" if one.ours is None else f"{one.ours:.4g}"
        scores = f"{one.theirs:.4g} -> {ours}"
        why = one.reason or f"NOT EXPLAINED: {' '.join(one.detail.split())[:200]}"
        yield f"{agreement.source} {agreement.group} {one.id}: {scores}: {why}"
