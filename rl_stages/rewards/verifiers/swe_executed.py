"""Executed SWE in one turn: a SEARCH/REPLACE repair, scored by hidden tests in the sandbox.

The score is 1 if all FAIL_TO_PASS and PASS_TO_PASS tests pass, else 0. If the sandbox fails, it is an infrastructure
failure.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.rewards.swe.grading import applicable, grade
from cascade_rl.rl_stages.rewards.swe.instance import Instance
from cascade_rl.rl_stages.rewards.swe.patch import PatchError, apply_edits, parse_edits
from cascade_rl.rl_stages.rewards.verifiers.sandboxed import SandboxedVerifier
from cascade_rl.rl_stages.rewards.verifiers.swe_agentless import bounded_answer

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task
    from cascade_rl.rl_stages.rewards.swe.repository import Files


class SweExecutedVerifier(SandboxedVerifier):
    """Runs on this node and on the nodes `others`; equal patches of one task run once."""

    def __call__(self, task: Task, text: str) -> Verdict:
        instance = Instance.of(task.metadata)
        try:
            patched = apply_edits(instance.repository.files, parse_edits(bounded_answer(text)))
        except PatchError as error:
            return Verdict.wrong_format(str(error))
        patch = applicable(instance.repository.files, patched)
        return self._remembered((instance.digest, _digest(patch)), lambda: grade(instance, patched, self._sandbox))


def _digest(patch: Files) -> str:
    return hashlib.sha256(json.dumps(patch, sort_keys=True).encode()).hexdigest()
