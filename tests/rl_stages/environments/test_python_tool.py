"""The Python tool: what a call leaves for the next, its limits, and a scripted model that reads what it computed."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.environments.environment import End, Observation
from cascade_rl.rl_stages.environments.python_cell import ENDED
from cascade_rl.rl_stages.environments.python_tool import (
    CALLS,
    NAME,
    TOOL,
    UNCHANGED,
    PythonEpisode,
    PythonTool,
    calling,
    with_tool,
)
from cascade_rl.rl_stages.environments.tool_output import MAX_OUTPUT
from cascade_rl.rl_stages.lessons import math
from cascade_rl.rl_stages.rewards.verifiers.math import MathVerifier
from cascade_rl.rl_stages.sandbox import CommandRun, Limits, Sandbox, Status
from cascade_rl.rl_stages.scoring.judge import Judge
from cascade_rl.rl_stages.tasks.load_tasks import parse_task
from tests.rl_stages.environments.scripted import TOKENIZER, Play, ScriptedServer

COUNTER = """
import math
count, seen = 0, []
same = seen
def more():
    global count
    count += 1
    return count
"""


class FakeSandbox:
    """Shows the code that it is given."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def folder(self, _files: object) -> Any:
        return self

    def close(self) -> None:
        self.ran.append("closed")

    def run_command(self, _argv: object, _folder: object, _limits: object, code: bytes) -> CommandRun:
        self.ran.append(code.decode())
        return CommandRun(Status.RUNTIME_ERROR, ENDED, f"{code.decode()}\n", 0.0, 0.0)


def episode(sandbox: Any, limits: Limits | None = None) -> PythonEpisode:
    given = {} if limits is None else {"limits": limits}
    return PythonEpisode(sandbox, lambda text: Verdict.scored(float("7" in text)), **given)


def shown(episode: PythonEpisode, text: str) -> list[str]:
    answer = episode.step(text)
    assert isinstance(answer, Observation)
    assert {message["role"] for message in answer.messages} == {"tool"}
    return [message["content"] for message in answer.messages]


def in_json(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_a_turn_without_a_call_is_the_answer() -> None:
    sandbox = FakeSandbox()
    played = episode(sandbox)
    assert shown(played, f"<think>Let us see.</think>{calling('a')} {in_json(NAME, code='b')}") == ["a", "b"]
    assert played.step("So it is 7.") == End(Verdict.scored(1.0))
    assert played.step(f"<think>{calling('c')}</think> It is 8.") == End(Verdict.scored(0.0))
    played.close()
    assert sandbox.ran[:2] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("<tool_call>{</tool_call>", "error: "),
        (in_json("bash", code="1"), f"error: expected a call of {NAME} with its code"),
        (in_json(NAME), f"error: expected a call of {NAME} with its code"),
        (in_json(NAME, code=["1"]), f"error: expected a call of {NAME} with its code"),
        (calling("x" * 100_001), "error: expected at most 100000 bytes"),
    ],
)
def test_a_wrong_call_is_told_so_and_runs_nothing(text: str, reply: str) -> None:
    sandbox = FakeSandbox()
    assert shown(episode(sandbox), text)[0].startswith(reply)
    assert sandbox.ran == []


def test_calls_and_output_have_limits() -> None:
    sandbox = FakeSandbox()
    played = episode(sandbox)
    [long] = shown(played, calling("a" * MAX_OUTPUT + "b" * 100))
    assert "[100 characters left out]" in long and long.endswith("b" * 100)
    assert len(shown(played, calling("1") * (CALLS - 1))) == CALLS - 1
    assert shown(played, calling("2")) == [f"error: all {CALLS} calls are used; give the answer"]
    assert "2" not in sandbox.ran


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(1) as sandbox:
        yield sandbox


@pytest.mark.sandbox
def test_the_interpreter_goes_on_where_it_was(sandbox: Sandbox) -> None:
    with closing(episode(sandbox, Limits(cpu_seconds=5.0, memory_mib=512))) as played:

        def run(code: str) -> str:
            [output] = shown(played, calling(code))
            return output

        assert run(COUNTER) == ""
        assert run("seen.append(more()); more()") == "2"
        assert run("print(count, same, math.pi > 3); input()").startswith("2 [1] True\nTraceback")
        assert run("raise ValueError(count)").splitlines()[-2:] == [
            "    raise ValueError(count)",
            "ValueError: 2",
        ]
        assert run("gone = (n for n in seen)\nkept = 5") == "[not kept for later calls: gone]"
        assert run("kept = 6\nimport os; os._exit(0)") == f"[the process ended early: {UNCHANGED}]"
        assert run("count = 9\nbytearray(1 << 30)").splitlines()[-1] == "MemoryError"
        assert run("more(), kept") == "(10, 5)"
        assert run("x = 1\nimport os; os.kill(os.getpid(), 9)").endswith(f": {UNCHANGED}]")
        assert run("'x' in dir()") == "False"


def problems() -> list[Task]:
    lessons = list(math.lessons())[::211][:3]
    rows = [parse_task(lesson.row("math"), "lesson", str(number)) for number, lesson in enumerate(lessons)]
    return [with_tool(row, "scripted") for row in rows]


@pytest.mark.sandbox
@pytest.mark.parametrize("task", problems(), ids=lambda task: task.id)
def test_a_model_that_reads_what_it_computed_solves_generated_problems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task: Task
) -> None:
    """ "right" computes and says what it was shown; "blind" says another number."""
    first, second = re.findall(r"\d+", task.messages[0]["content"])
    sign = "+" if int(task.metadata["expected_answer"]) > int(first) else "-"

    def say(name: str, turn: int) -> str:
        if turn < 2:
            return calling((f"a, b = {first}, {second}", f"print(a {sign} b)")[turn])
        found = re.findall(r"tool\n(\d+)", TOKENIZER.decode(ScriptedServer.requests[-1].prompt_ids))
        return f"\\boxed{{{found[-1] if name == 'right' else 77}}}"

    with closing(PythonTool(MathVerifier)) as environment:
        play = Play(monkeypatch, tmp_path, environment, say, task, limit=1500)
        samples = play(["right", "blind"], Sampling(900, stop_token_ids=(TOKENIZER.eos_token_id,)))
        with Judge(TOKENIZER) as judge:
            ((right, blind),) = judge([task], [[samples["right"], samples["blind"]]])
    assert (right.verdict.score, blind.verdict.score) == (1.0, 0.0)
    assert samples["right"].turns == 3
    assert task.tools == (TOOL,)
