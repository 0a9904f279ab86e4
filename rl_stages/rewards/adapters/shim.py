"""Runs third-party reward code in its own process, with an interpreter that may lack this package.

    python shim.py PARENT_DEATH function PKG.MODULE:FUNCTION     a reward function with TRL's or verl's signature
    python shim.py PARENT_DEATH verifiers PACKAGE                a taskset of the package `verifiers` (v1, 0.4.0)

PARENT_DEATH is the path of `engine/core/parent_death.py`.

One JSON request per line on stdin: `messages`, `columns` (the row's other fields) and `answers`, each with `text` (what
a function reads), `reasoning` and `answer`. One JSON reply per line on stdout: `replies`, one for each answer: `score`,
a number or null, with `parts`; or `error`. What the code itself prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
import os
import runpy
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

READY = "ready"

Request = Mapping[str, Any]
Score = Callable[[Request], list[dict[str, Any]]]


def function(target: str) -> Score:
    """Scores through `reward(prompts, completions, **columns)` or `compute_score(data_source, solution_str, ...)`."""
    module, _, name = target.partition(":")
    reward = getattr(importlib.import_module(module), name)
    names = inspect.signature(reward).parameters
    if "solution_str" in names:
        return lambda request: [reply_of(value) for value in finished(verl_rewards(reward, request))]
    if "completions" in names:
        return lambda request: [reply_of(value) for value in finished([trl_rewards(reward, request, names)])[0]]
    raise TypeError(
        f"expected {target} to take (prompts, completions, **columns), as in TRL, or "
        f"(data_source, solution_str, ground_truth, extra_info), as in verl; found {inspect.signature(reward)}"
    )


def trl_rewards(reward: Callable[..., Any], request: Request, names: Mapping[str, inspect.Parameter]) -> Any:
    """The rewards of a batch, in the conversational form. A coroutine of an async function."""
    answers = request["answers"]
    arguments = {
        "prompts": [request["messages"]] * len(answers),
        "completions": [[{"role": "assistant", "content": answer["text"]}] for answer in answers],
        **{name: [value] * len(answers) for name, value in request["columns"].items()},
    }
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values()):
        arguments = {name: value for name, value in arguments.items() if name in names}
    return reward(**arguments)


def verl_rewards(reward: Callable[..., Any], request: Request) -> list[Any]:
    """One reward for each answer: values, or coroutines of an async function."""
    shared = verl_arguments(request)
    return [reward(**shared, solution_str=answer["text"]) for answer in request["answers"]]


def verl_arguments(request: Request) -> dict[str, Any]:
    """`ground_truth` is the row's, or that of its `reward_model`, where verl's own rows keep it."""
    columns = request["columns"]
    truth = columns["ground_truth"] if "ground_truth" in columns else columns["reward_model"]["ground_truth"]
    return {
        "data_source": columns.get("data_source"),
        "ground_truth": truth,
        "extra_info": columns.get("extra_info"),
    }


def finished(values: list[Any]) -> list[Any]:
    """The values; those that are awaitable are awaited together."""

    async def value_of(value: Any) -> Any:
        return await value if inspect.isawaitable(value) else value

    return gathered(map(value_of, values)) if any(map(inspect.isawaitable, values)) else values


def gathered(awaited: Iterable[Awaitable[Any]]) -> list[Any]:
    async def wait() -> list[Any]:
        return list(await asyncio.gather(*awaited))

    return asyncio.run(wait())


def reply_of(value: Any) -> dict[str, Any]:
    """The reply for a number, null, or a dict with `score`, whose other numbers become parts."""
    if not isinstance(value, dict):
        return {"score": number(value), "parts": {}}
    parts = {name: float(item) for name, item in value.items() if name != "score" and is_number(item)}
    return {"score": number(value["score"]), "parts": parts}


def number(value: Any) -> float | None:
    if value is None:
        return None
    if not math.isfinite(float(value)):
        raise ValueError(f"expected a finite reward; found {value!r}")
    return float(value)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def verifiers_taskset(package: str) -> Score:
    """Scores with the rewards of the taskset's Task. Those that need a runtime are skipped, as it does itself."""
    import verifiers.v1 as vf
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.trace import AgentInfo, TraceTask
    from verifiers.v1.types import AssistantMessage, SystemMessage, UserMessage
    from verifiers.v1.utils.loaders import task_type

    kind = task_type(package)
    turns = {"system": SystemMessage, "user": UserMessage, "assistant": AssistantMessage}

    async def scored(request: Request, text: Mapping[str, str]) -> dict[str, Any]:
        task = kind(kind.data_type().model_validate(request["columns"]["task"]))
        nodes: list[Any] = []
        for message in request["messages"]:
            turn = turns[message["role"]](content=message["content"])
            nodes.append(MessageNode(message=turn, parent=len(nodes) - 1 if nodes else None))
        answer = AssistantMessage(content=text["answer"], reasoning_content=text["reasoning"] or None)
        nodes.append(MessageNode(message=answer, parent=len(nodes) - 1, sampled=True))
        info = AgentInfo(config=AgentConfig())
        trace = vf.Trace(task=TraceTask(type=kind.__name__, data=task.data), agent=info, nodes=nodes)
        await task.score(trace)
        if not trace.rewards:
            raise ValueError(f"expected rewards of {kind.__name__} that need no runtime; found none")
        parts = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        parts |= {name: float(value) for name, value in trace.metrics.items() if value is not None}
        return {"score": number(trace.reward), "parts": parts}

    return lambda request: gathered(scored(request, text) for text in request["answers"])


KINDS = {"function": function, "verifiers": verifiers_taskset}


def replies_to(request: Request, score: Score) -> list[dict[str, Any]]:
    """One reply for each answer. A batch that raises is scored again answer by answer."""
    answers = request["answers"]
    try:
        replies = score(request)
        if len(replies) != len(answers):
            raise ValueError(f"expected one reward for each of {len(answers)} completions; found {len(replies)}")
        return replies
    except Exception as error:  # third-party code may raise anything; the error is the reply
        if len(answers) == 1:
            return [{"error": described(error)}]
    return [reply for answer in answers for reply in replies_to({**request, "answers": [answer]}, score)]


def described(error: Exception) -> str:
    """The error, and where in the reward's own files it was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) != Path(__file__)]
    where = f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def main() -> None:
    runpy.run_path(sys.argv[1])["die_with_parent"]()  # a reward that hangs must not outlive its parent
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    score = KINDS[sys.argv[2]](sys.argv[3])
    print(READY, file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps({"replies": replies_to(json.loads(line), score)}), file=replies, flush=True)


if __name__ == "__main__":
    main()
