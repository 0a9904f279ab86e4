"""Programs: a fenced block of an answer runs in the sandbox, and its outputs are compared outside.

The score is 1 if all tests pass, else 0, as in both papers (arXiv 2512.13607 and 2603.19220). The graders of
LiveCodeBench and NeMo-Gym (testing_util.py) run the program in the process that holds the expected outputs, with
look-alikes of standard input and output. There a program that reads these outputs passes, and a correct one that uses
`sys.stdout.buffer` fails. Here neither happens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.verifiers.programs.checkers import Checker
from cascade_rl.rl_stages.rewards.verifiers.programs.code_answers import program_in
from cascade_rl.rl_stages.rewards.verifiers.programs.code_rows import Problem, SpecialJudge, definition
from cascade_rl.rl_stages.rewards.verifiers.sandboxed import SandboxedVerifier
from cascade_rl.rl_stages.sandbox import Program, ProgramRun, SandboxFailure, Status, TestRun

if TYPE_CHECKING:
    from cascade_rl.engine.cluster.node import Node
    from cascade_rl.rl_stages.core.task import Task

_FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import[ \t]+(?:\([^)]{0,500}\)|[^\n(]*)", re.MULTILINE)
ACCEPTED, REFUSED = 0, (1, 2)  # testlib's exit codes
TRACEBACK = "Traceback (most recent call last)"


class JudgeFailed(RuntimeError):
    """A row's special judge has had no verdict yet, and has none on an accepted answer."""


class CodeVerifier(SandboxedVerifier):
    """Score 1 if every test passes, else 0. An answer without a program is a wrong format.

    The run ends at the first test that fails; `parts["tests_passed"]` is the share that passed before it. Equal
    programs for one problem run once. Raises CompilerUnavailable for C++ without a compiler.
    """

    def __init__(self, slots: int | None = None, others: Sequence[Node] = ()) -> None:
        super().__init__(slots, others)
        self._sound: set[SpecialJudge] = set()  # those that have had a verdict: outputs at which they fail are wrong

    def __call__(self, task: Task, text: str) -> Verdict:
        problem: Problem = task.metadata["problem"]
        source = program_in(final_answer(text) or "", problem)
        if source is None:
            return Verdict.wrong_format("expected a program after a line of ``` after the reasoning; found none")
        # Keyed by hash: all tests of thousands of problems are too much to keep, and ids repeat between sources.
        return self._remembered(hash((problem, source)), lambda: self._run(problem, source))

    def _run(self, problem: Problem, source: str) -> Verdict:
        try:
            return self._judged(problem, source)
        except (SandboxFailure, JudgeFailed) as failure:
            return Verdict.infrastructure_failure(str(failure))

    def _judged(self, problem: Problem, source: str) -> Verdict:
        passed = 0

        def failed(index: int, test: TestRun) -> bool:
            nonlocal passed
            accepted = _passes(problem, index, test)
            passed += accepted
            return not accepted

        run = self._sandbox.run_program(program(problem, source), problem.inputs, stop_on=failed)
        if run.compile_error is not None:
            return Verdict.scored(0.0, {"tests_passed": 0.0}, f"compile error: {run.compile_error[-200:]}")
        total = len(problem.inputs)
        if passed == total and isinstance(problem.checker, SpecialJudge):
            passed = self._accepted(problem, problem.checker, run)
        why = f"{total} tests passed" if passed == total else f"test {passed + 1} of {total}: {_fault(run, passed)}"
        return Verdict.scored(float(passed == total), {"tests_passed": passed / total}, why)

    def _accepted(self, problem: Problem, judge: SpecialJudge, run: ProgramRun) -> int:
        """How many tests come before the first that the special judge refuses, or fails at. Raises JudgeFailed."""
        *_, last = judged = self._judged_by(judge, problem, 0, [test.output for test in run.tests])
        if any(map(_has_verdict, judged)):
            self._sound.add(judge)
        elif judge not in self._sound:
            (on_answer,) = self._judged_by(judge, problem, 0, [problem.accepted[0][0].encode()])
            if not _has_verdict(on_answer):
                found = f"{last.exit_code} ({last.status}) {last.errors.strip()[-160:]}"
                raise JudgeFailed(f"expected the special judge to exit with 0, 1 or 2; found {found}")
            self._sound.add(judge)
        return len(judged) - (last.exit_code != ACCEPTED or last.status is not Status.OK)

    def _judged_by(
        self, judge: SpecialJudge, problem: Problem, first: int, outputs: Sequence[bytes]
    ) -> tuple[TestRun, ...]:
        """The judge's runs on outputs of the tests from `first` on, in one sandbox, until it does not accept one."""
        questions = [
            _question(given, output, accepted[0])
            for given, accepted, output in zip(problem.inputs[first:], problem.accepted[first:], outputs, strict=False)
        ]
        run = self._sandbox.run_program(
            Program(language=judge.language, source=judge.source, limits=problem.limits),
            questions,
            stop_on=lambda _, test: test.exit_code != ACCEPTED or test.status is not Status.OK,
        )
        if run.compile_error is not None or not run.tests:
            raise JudgeFailed(f"expected the special judge to run; found {run.compile_error}")
        return run.tests


def _has_verdict(test: TestRun) -> bool:
    """Whether the exit code is one of testlib's. Python exits with 1 after an exception, too."""
    ended = test.status in (Status.OK, Status.RUNTIME_ERROR) and TRACEBACK not in test.errors
    return ended and test.exit_code in (ACCEPTED, *REFUSED)


def program(problem: Problem, source: str) -> Program:
    """The program that the sandbox runs: the answer, after the source that it continues."""
    return Program(
        language=problem.language,
        source=_continued(problem, source) if problem.prologue else source,
        mode=problem.mode,
        entry=problem.function,
        limits=problem.limits,
    )


def _continued(problem: Problem, source: str) -> str:
    """The answer after the prologue; one that defines the function itself, after what stands before the function there.

    What it imports from `__future__` comes first.
    """
    prologue, define = problem.prologue, definition(problem.function or "")
    if define.search(source) and (there := define.search(prologue)):
        prologue = prologue[: there.start()]
    future = "".join(match[0] + "\n" for match in _FUTURE.finditer(source))
    return future + prologue + _FUTURE.sub("", source)


def _passes(problem: Problem, index: int, test: TestRun) -> bool:
    if test.status is not Status.OK:
        return False
    if isinstance(problem.checker, Checker):
        return problem.checker.accepts(test.output, problem.accepted[index])
    return True


def _question(given: bytes, output: bytes, answer: str) -> bytes:
    fields = {"input": given.decode(), "output": output.decode(errors="replace"), "answer": answer}
    return json.dumps(fields).encode()


def _fault(run: ProgramRun, index: int) -> str:
    if index >= len(run.tests):
        return "not run: the program ended the process that runs the tests"
    test = run.tests[index]
    if test.status is Status.OK:
        return "wrong answer"
    return f"{test.status} {test.errors.strip()[-160:]}".strip()
