"""`cascade bench verify`: checks per second of each verifier, and the cost of three ways to isolate tests."""

import json
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verifier
from cascade_rl.rl_stages.rewards.verifiers.programs.code import CodeVerifier
from cascade_rl.rl_stages.sandbox import Program, Sandbox
from cascade_rl.rl_stages.tasks.domains import DOMAINS

SECONDS = 3.0  # per verifier
MOST_CHECKS = 50_000
DISTINCT = 1000  # different programs
TESTS = 50  # of the longer code case
REPEATS = 3
ADDITION = "a, b = map(int, input().split())\nprint(a + b)\n"

Case = tuple[Task, str]


@dataclass(frozen=True)
class Row:
    """The speed of one verifier that makes one check after another.

    per_core_second  checks per second of CPU time, child processes included. This is the throughput of one core, even
                     on a busy machine.
    p99_ms           99th percentile of the wall-clock time of a check
    """

    verifier: str
    checks: int
    per_core_second: float
    p99_ms: float


@dataclass(frozen=True)
class Boxes:
    """CPU milliseconds of a Python program with TESTS tests. Median of REPEATS interleaved measurements.

    forks         one sandbox, and a fork of its interpreter per test: what the verifier does
    interpreters  a new interpreter per test, without a sandbox
    boxes         a new sandbox with a new interpreter per test
    """

    tests: int
    tier: str
    forks: float
    interpreters: float
    boxes: float


def cases() -> dict[str, Callable[[], tuple[Verifier, list[Case]]]]:
    """Row name -> a function that makes the verifier and its answers, right and wrong ones."""
    math = [(r"\frac{\sqrt{8}}{2}", r"\sqrt{2}"), (r"x^2+2x+1", "(x+1)^2"), (r"\frac{\pi}{3}", r"\frac{\pi}{2}")]
    options = [{"A": "a cat"}, {"B": "a dog"}, {"C": "a bird"}]
    return {
        "math, plain numbers": lambda: taught("math"),
        "math, symbolic": lambda: given(
            "math", [({"expected_answer": gold}, rf"\boxed{{{answer}}}") for answer, gold in math]
        ),
        "instruction following": lambda: taught("instruction_following"),
        "multiple choice": lambda: given(
            "mcqa", [({"options": options, "expected_answer": "B"}, rf"\boxed{{{letter}}}") for letter in "AB"]
        ),
        "structured output": lambda: given("structured_output", [(schema_fields(), text) for text in documents()]),
        "tool call": lambda: given("tool_call", [(call_fields(), call(to)) for to in ("Ann", "Bob")]),
        "code, 1 to 4 tests": lambda: one_slot(distinct(taught("code")[1])),
        f"code, {TESTS} tests": lambda: one_slot(
            distinct(given("code", [({"verifier_metadata": {"unit_tests": additions()}}, f"```\n{ADDITION}```")])[1])
        ),
    }


def taught(domain: str) -> tuple[Verifier, list[Case]]:
    """Answers of generated lessons. Every other answer is deliberately wrong."""
    lessons, rng = DOMAINS[domain].lessons, random.Random(0)
    assert lessons is not None
    drawn = rng.sample(list(lessons()), 200)
    answers = [str((lesson.right if index % 2 else lesson.wrong)(rng)) for index, lesson in enumerate(drawn)]
    return given(domain, [(lesson.row(domain), answer) for lesson, answer in zip(drawn, answers, strict=True)])


def given(domain: str, rows: Sequence[tuple[Mapping[str, Any], str]]) -> tuple[Verifier, list[Case]]:
    made = DOMAINS[domain]
    tasks = [(Task(domain, domain, (), made.parse_row(fields)), text) for fields, text in rows]
    assert made.verifier is not None
    verifier = made.verifier()
    assert callable(verifier)
    return verifier, tasks


def one_slot(answers: list[Case]) -> tuple[Verifier, list[Case]]:
    return CodeVerifier(slots=1), answers


def distinct(answers: list[Case]) -> list[Case]:
    """Makes more distinct programs than the time allows to run: the verifier does not rerun a program it has seen."""
    rounds = range(-(-DISTINCT // len(answers)))
    return [(task, text.replace("\n", f"\n# {number}\n", 1)) for number in rounds for task, text in answers]


def schema_fields() -> dict[str, Any]:
    person = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"people": {"type": "array", "items": person}}}
    return {"schema_type": "json", "schema_str": json.dumps(schema)}


def documents() -> Iterator[str]:
    for age in (7, "seven"):
        yield json.dumps({"people": [{"name": "Ann", "age": age}] * 50})


def call_fields() -> dict[str, Any]:
    tool = {"type": "function", "name": "pay", "parameters": {"type": "object"}}
    action = {"type": "function_call", "name": "pay", "arguments": json.dumps({"to": "Ann", "amount": 3})}
    return {"responses_create_params": {"tools": [tool]}, "expected_action": action}


def call(to: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'pay', 'arguments': {'to': to, 'amount': 3}})}</tool_call>"


def additions() -> dict[str, list[str]]:
    pairs = [(number, 7 * number) for number in range(TESTS)]
    return {"inputs": [f"{a} {b}\n" for a, b in pairs], "outputs": [f"{a + b}\n" for a, b in pairs]}


def measure(name: str, verifier: Verifier, answers: Sequence[Case], seconds: float) -> Row:
    """Makes checks for `seconds`, after two warm-up checks that are not counted.

    Raises AssertionError with the verdict if a check gives no score.
    """
    for task, text in answers[:2]:
        verifier(task, text)
    times: list[float] = []
    end, cpu_before = time.perf_counter() + seconds, cpu_seconds()
    for task, text in islice(cycle(answers), MOST_CHECKS):
        start = time.perf_counter()
        verdict = verifier(task, text)
        times.append(time.perf_counter() - start)
        assert verdict.score is not None, verdict
        if time.perf_counter() > end:
            break
    p99 = sorted(times)[int(0.99 * len(times))]
    return Row(name, len(times), len(times) / (cpu_seconds() - cpu_before), 1e3 * p99)


def cpu_seconds() -> float:
    """CPU time of this process and its descendants, including those that have ended and been reaped."""
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    alive = psutil.Process().children(recursive=True)  # resolution 10 ms; getrusage has 1 µs
    return sum(used.ru_utime + used.ru_stime for used in own) + sum(map(_cpu_seconds_of, alive))


def _cpu_seconds_of(process: psutil.Process) -> float:
    """Includes its reaped children. A process that has just ended is counted by its parent from now on."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.NoSuchProcess:
        return 0.0


def boxes() -> Boxes:
    program = Program(language="python", source=ADDITION)
    inputs = [text.encode() for text in additions()["inputs"]]
    times: dict[str, list[float]] = {"forks": [], "interpreters": [], "boxes": []}
    with Sandbox(1) as sandbox:
        ways: dict[str, Callable[[], object]] = {
            "forks": lambda: sandbox.run_program(program, inputs),
            "interpreters": lambda: [interpret(given) for given in inputs],
            "boxes": lambda: [sandbox.run_program(program, [given]) for given in inputs],
        }
        sandbox.run_program(program, inputs[:1])
        for _ in range(REPEATS):
            for name, way in ways.items():
                start = cpu_seconds()
                way()
                times[name].append(1e3 * (cpu_seconds() - start))
        return Boxes(TESTS, str(sandbox.tier), **{name: statistics.median(taken) for name, taken in times.items()})


def interpret(given: bytes) -> bytes:
    """Isolated and without `site`: the fastest start of an interpreter."""
    command = [sys.executable, "-I", "-S", "-c", ADDITION]
    return subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True).stdout


def run(json_path: Path | None, machine: str) -> int:
    """Prints the results. `Row` and `Boxes` explain the numbers."""
    rows = []
    for name, make in cases().items():
        verifier, answers = make()
        with closing(verifier):
            rows.append(measure(name, verifier, answers, SECONDS))
    found = boxes()
    libraries = ", ".join(f"{name} {version(name)}" for name in ("math-verify", "jsonschema"))
    where = f"{machine}; Python {platform.python_version()}, {libraries}; sandbox tier: {found.tier}"
    console = Console(highlight=False)
    console.print(table(rows))
    console.print(
        f"A Python program with {found.tests} tests takes {found.forks:.0f} ms of CPU time in one sandbox with a fork "
        f"per test. A new interpreter per test, without a sandbox, takes {found.interpreters:.0f} ms "
        f"({found.interpreters / found.forks:.1f} times as much). A new sandbox per test takes {found.boxes:.0f} ms "
        f"({found.boxes / found.forks:.1f} times as much)."
    )
    print(f"on {where}")
    if json_path:
        report = {"machine": where, "verifiers": [asdict(row) for row in rows], "boxes": asdict(found)}
        json_path.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def table(rows: Sequence[Row]) -> Table:
    shown = Table(title="Verifiers, one check after another")
    shown.add_column("verifier")
    for title in ("checks", "checks/s per core", "p99 ms"):
        shown.add_column(title, justify="right")
    for row in rows:
        shown.add_row(row.verifier, str(row.checks), f"{row.per_core_second:,.0f}", f"{row.p99_ms:.2f}")
    return shown
