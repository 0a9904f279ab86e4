"""A Python interpreter as the model's tool: it calls it as often as it needs, then answers, and the answer is verified.

The papers' tool-integrated reasoning (arXiv 2603.19220, appendix A): one tool, `stateful_python_code_exec`, at most 100
calls of at most 120 s each. A turn without a call is the answer. Each call has a box of its own; what it defined is
kept in a file between them, so that no process waits for a model that thinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Self

from cascade_rl.engine.cluster.node import Node
from cascade_rl.rl_stages.core.exemplar import Exemplar
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verifier, final_answer
from cascade_rl.rl_stages.environments.environment import End, Observation
from cascade_rl.rl_stages.environments.python_cell import ENDED
from cascade_rl.rl_stages.environments.tool_output import cut
from cascade_rl.rl_stages.rewards.verifiers.structured.documents import Malformed
from cascade_rl.rl_stages.rewards.verifiers.structured.tool_text import ToolCall, split_calls
from cascade_rl.rl_stages.sandbox import CommandRun, Folder, Limits, Sandbox, Status, cores

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.verdict import Verdict

NAME = "stateful_python_code_exec"
PARAMETERS = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "Python code"}},
    "required": ["code"],
}
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Runs Python code and shows what it prints, and the value of a last expression. Names that it "
        "defines are kept for later calls.",
        "parameters": PARAMETERS,
    },
}
CALLS = 100
LIMITS = Limits(cpu_seconds=120.0, file_mib=256)  # of processor time, which is fair on a loaded machine
MAX_CODE = 100_000  # bytes
CELL = Path(__file__).with_name("python_cell.py").read_text()
UNCHANGED = "the interpreter is as it was before this call"
EXEMPLARS = 3


class PythonTool:
    """The environment of a domain whose answers `verifier` scores, with sandboxes on this node and on `others`."""

    step_seconds = 1200.0

    def __init__(self, verifier: Callable[[], Verifier], others: Sequence[Node] = ()) -> None:
        self.sandbox, self.verifier = Sandbox(cores(), others=others), verifier()
        self.concurrency = self.sandbox.slots
        self.judging = ThreadPoolExecutor(self.verifier.concurrency, thread_name_prefix="verifier")

    def on(self, node: Node) -> Self:
        """This environment on one of its nodes. It is closed with this one."""
        part = copy(self)
        part.sandbox = self.sandbox.on(node)
        return part

    def start(self, task: Task) -> PythonEpisode:
        return PythonEpisode(self.sandbox, lambda text: self.judging.submit(self.verifier, task, text).result())

    def close(self) -> None:
        self.judging.shutdown()
        self.verifier.close()
        self.sandbox.close()


class PythonEpisode:
    """`verify` scores the last turn."""

    def __init__(self, sandbox: Sandbox, verify: Callable[[str], Verdict], limits: Limits = LIMITS) -> None:
        self.sandbox, self.verify, self.limits = sandbox, verify, limits
        self.folder: Folder | None = None
        self.calls = 0

    def step(self, text: str) -> Observation | End:
        try:
            _, calls = split_calls(final_answer(text) or "", {NAME: PARAMETERS})
        except Malformed as error:
            return Observation.of_tools(f"error: {error}")
        return Observation.of_tools(*map(self._reply, calls)) if calls else End(self.verify(text))

    def close(self) -> None:
        if self.folder:
            self.folder.close()

    def _reply(self, call: ToolCall) -> str:
        code = call.arguments.get("code")
        if call.name != NAME or not isinstance(code, str):
            return f"error: expected a call of {NAME} with its code, which is text"
        if self.calls == CALLS:
            return f"error: all {CALLS} calls are used; give the answer"
        self.calls += 1
        given = code.encode(errors="replace")
        return _shown(self._run(given)) if len(given) <= MAX_CODE else f"error: expected at most {MAX_CODE} bytes"

    def _run(self, code: bytes) -> CommandRun:
        self.folder = self.folder or self.sandbox.folder({})
        return self.sandbox.run_command(["python", "-c", CELL], self.folder, self.limits, code)


def _shown(run: CommandRun) -> str:
    said = cut(run.output.rstrip("\n"))
    if run.exit_code == ENDED:
        return said
    why = "the process ended early" if run.status is Status.OK else run.status
    return f"{said}\n[{why}: {UNCHANGED}]".lstrip("\n")


def with_tool(task: Task, domain: str) -> Task:
    """The task with the tool, as one of a `domain` whose environment is this one."""
    return replace(task, domain=domain, tools=(*task.tools, TOOL))


def exemplars(tasks: Iterable[Task]) -> Sequence[Sequence[Exemplar]]:
    """Episodes of mathematics whose score is known: a call, then the expected answer or none."""
    return [[_exemplar(task) for task in islice(tasks, EXEMPLARS)]]


def _exemplar(task: Task) -> Exemplar:
    call = calling("print(6 * 7)")
    return Exemplar(task.id, task, (call, f"\\boxed{{{task.metadata['expected_answer']}}}"), (call, "I do not know."))


def calling(code: str) -> str:
    """A turn that runs the code, in the form that is text for text the same in every template that shows it."""
    return f"<tool_call><function={NAME}><parameter=code>{code}</parameter></function></tool_call>"
