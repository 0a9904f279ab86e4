"""A rollout's own copy of a repository. Actions change it in the sandbox, and its diff is graded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from cascade_rl.rl_stages.rewards.swe.grading import grade
from cascade_rl.rl_stages.rewards.swe.instance import Instance
from cascade_rl.rl_stages.rewards.swe.other_copies import other_copies
from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff
from cascade_rl.rl_stages.sandbox import Limits

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task
    from cascade_rl.rl_stages.core.verdict import Verdict
    from cascade_rl.rl_stages.sandbox import Folder, Sandbox

ACTION_LIMITS = Limits(cpu_seconds=10.0, output_bytes=1 << 16)


class Workspace:
    """One rollout of a `swe_executed` task. A context manager. It contains neither the tests nor a version history, and
    its commands see no other copy of the repository's packages.

    with Workspace.create(task, sandbox) as workspace:
        output, exit_code = workspace.act("sed -i 's/<=/</' heap.py")
        verdict = workspace.grade()
    """

    def __init__(self, instance: Instance, sandbox: Sandbox, folder: Folder) -> None:
        self._instance = instance
        self._sandbox = sandbox
        self._folder = folder

    @classmethod
    def create(cls, task: Task, sandbox: Sandbox) -> Self:
        """A fresh checkout of the task's repository. Raises SandboxFailure, and OSError if it cannot be written."""
        instance = Instance.of(task.metadata)
        repository = instance.repository
        return cls(instance, sandbox, sandbox.folder(repository.files, None, other_copies(repository)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def act(self, command: str, limits: Limits = ACTION_LIMITS) -> tuple[str, int]:
        """Output and exit code of a shell command in the checkout. Raises SandboxFailure.

        Each command has its own box: files persist between commands, processes and shell variables do not.
        """
        run = self._sandbox.run_command(["/bin/sh", "-c", command], self._folder, limits)
        return run.output, run.exit_code

    def files(self) -> Mapping[str, str]:
        """The current text of the repository's own files. New files, links and files that are not text are left out."""
        return self._folder.texts(list(self._instance.repository.files))

    def patch(self) -> str:
        """The unified diff of the repository's own files. Empty if nothing has changed."""
        return unified_diff(self._instance.repository.files, self.files())

    def grade(self) -> Verdict:
        """1 if all tests have their expected outcomes with the patch on a fresh checkout, else 0.

        An infrastructure failure if the sandbox fails.
        """
        return grade(self._instance, self.files(), self._sandbox)

    def close(self) -> None:
        """Removes the folder. Can be called more than once."""
        self._folder.close()
