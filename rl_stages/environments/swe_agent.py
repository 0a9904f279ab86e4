"""Agentic SWE: one shell command per turn in a sandboxed checkout, graded by hidden tests when the agent submits.

The tools are `bash`, with a `command`, and `submit`, without arguments. Their format is that of
rewards/verifiers/structured/tool_text.py. Rows are those of executed SWE (rewards/swe/instance.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Self

from cascade_rl.engine.cluster.node import Node
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.environments.environment import End, Observation
from cascade_rl.rl_stages.environments.tool_output import cut
from cascade_rl.rl_stages.rewards.swe.workspace import Workspace
from cascade_rl.rl_stages.rewards.verifiers.structured.documents import Malformed
from cascade_rl.rl_stages.rewards.verifiers.structured.tool_text import ToolCall, split_calls
from cascade_rl.rl_stages.sandbox import Limits, Sandbox, cores

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "bash": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    "submit": {"type": "object", "properties": {}},
}
LIMITS = Limits(cpu_seconds=60.0)
MAX_COMMAND = 50_000  # bytes; the kernel refuses too long an argument, which would look like a sandbox failure


class WrongAction(ValueError):
    """A turn that is not an action. The error's text is shown to the agent, which may try again."""


class SweAgent:
    """The environment, with sandboxes on this node and on the nodes `others`.

    `step_seconds` also covers grading: NeMo-Gym's `swe_agents` gives its tests 1200 s.
    """

    step_seconds = 1200.0

    def __init__(self, others: Sequence[Node] = ()) -> None:
        self.sandbox = Sandbox(cores(), others=others)
        self.concurrency = self.sandbox.slots

    def on(self, node: Node) -> Self:
        """This environment on one of its nodes. It is closed with this one."""
        part = copy(self)
        part.sandbox = self.sandbox.on(node)
        return part

    def start(self, task: Task) -> SweEpisode:
        return SweEpisode(Workspace.create(task, self.sandbox))

    def close(self) -> None:
        self.sandbox.close()


class SweEpisode:
    """A checkout that the agent's commands change until it submits."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def step(self, text: str) -> Observation | End:
        answer = final_answer(text)
        if answer is None:
            return End(Verdict.wrong_format("expected an action after the reasoning; found none"))
        try:
            command = _action(answer)
        except WrongAction as error:
            return Observation.of_tools(f"error: {error}")
        if command is None:
            return End(self.workspace.grade())
        return Observation.of_tools(_shown(*self.workspace.act(command, LIMITS)))

    def close(self) -> None:
        self.workspace.close()


def _action(answer: str) -> str | None:
    """The command of the turn's only call; None for `submit`."""
    try:
        _, calls = split_calls(answer, SCHEMAS)
    except Malformed as error:
        raise WrongAction(str(error)) from None
    if len(calls) != 1 or calls[0].name not in SCHEMAS:
        raise WrongAction("expected one call, of bash or of submit")
    return None if calls[0].name == "submit" else _command(calls[0])


def _command(call: ToolCall) -> str:
    """The command, checked: text that a shell cannot take would look like a sandbox failure."""
    command = call.arguments.get("command")
    if not isinstance(command, str) or "\0" in command:
        raise WrongAction("bash needs a command, which is text without zero bytes")
    if len(command.encode(errors="replace")) > MAX_COMMAND:
        raise WrongAction(f"expected a command of at most {MAX_COMMAND} bytes")
    return command.encode(errors="replace").decode()


def _shown(output: str, exit_code: int) -> str:
    output = cut(output)
    return output if exit_code == 0 else f"{output}\nexit code {exit_code}"
