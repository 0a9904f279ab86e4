"""Executed SWE in one turn: a SEARCH/REPLACE repair, scored by hidden tests in the sandbox.

1 when all FAIL_TO_PASS and PASS_TO_PASS tests pass, else 0; a sandbox that fails is an infrastructure failure.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from cascade_rl.rl_stages.sandbox import Sandbox, cores
from cascade_rl.rl_stages.swe.grading import grade
from cascade_rl.rl_stages.swe.instance import Instance
from cascade_rl.rl_stages.swe.patch import PatchError, apply_edits, parse_edits
from cascade_rl.rl_stages.swe.unified_diff import unified_diff
from cascade_rl.rl_stages.verdict import Verdict
from cascade_rl.rl_stages.verifiers.swe_agentless import bounded_answer

if TYPE_CHECKING:
    from cascade_rl.rl_stages.task import Task

REMEMBERED = 4096


class SweExecutedVerifier:
    """Safe to call from several threads. The sandbox starts with the first patch.

    Of one task, equal patches are run once: samples of a group repeat each other, and the tests are deterministic.
    """

    def __init__(self, slots: int | None = None) -> None:
        self.concurrency = slots or cores()
        self._sandbox: Sandbox | None = None
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[tuple[str, str], Verdict] = OrderedDict()

    def __call__(self, task: Task, text: str) -> Verdict:
        instance = Instance.of(task.metadata)
        try:
            patched = apply_edits(instance.repository.files, parse_edits(bounded_answer(text)))
        except PatchError as error:
            return Verdict.wrong_format(str(error))
        key = task.id, unified_diff(instance.repository.files, patched)
        with self._lock:
            known = self._verdicts.get(key)
            sandbox = self._sandbox = self._sandbox or Sandbox(self.concurrency)
        return known or self._remember(key, grade(instance, patched, sandbox))

    def close(self) -> None:
        """Ends the sandbox, if there is one."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _remember(self, key: tuple[str, str], verdict: Verdict) -> Verdict:
        if verdict.score is not None:  # a failed sandbox says nothing about the patch
            with self._lock:
                self._verdicts[key] = verdict
                while len(self._verdicts) > REMEMBERED:
                    self._verdicts.popitem(last=False)
        return verdict
