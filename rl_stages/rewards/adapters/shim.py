"""Runs third-party reward code in its own process, with an interpreter that may lack this package.

    python shim.py PARENT_DEATH function PKG.MODULE:FUNCTION     a reward function with TRL's or verl's signature
    python shim.py PARENT_DEATH verifiers PACKAGE                a taskset of the package `verifiers` (v1, 0.4.0)

PARENT_DEATH is the path of `engine/core/parent_death.py`.

One JSON request per line on stdin: `messages`, `reasoning`, `answer`, `columns` (the row's other fields). One JSON
reply per line on stdout: `score`, a number or null, with `parts`; or `error`. What the code itself prints goes to
stderr.
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
from collections.abc import Callable, Mapping
from typing import Any

READY = "ready"

Score = Callable[[Mapping[str, Any]], dict[str, Any]]


def function(target: str) -> Score:
    """Scores through `reward(prompts, completions, **columns)` or `compute_score(data_source, solution_str, ...)`."""
    module, _, name = target.partition(":")
    reward = getattr(importlib.import_module(module), name)
    names = inspect.signature(reward).parameters
    if "solution_str" in names:
        return lambda request: reply_of(finished(reward(**verl_arguments(request))))
    if "completions" in names:
        return lambda request: reply_of(one(finished(reward(**trl_arguments(request, names)))))
    raise TypeError(
        f"expected {target} to take (prompts, completions, **columns), as in TRL, or "
        f"(data_source, solution_str, ground_truth, extra_info), as in verl; found {inspect.signature(reward)}"
    )


def trl_arguments(request: Mapping[str, Any], names: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """A batch of one, in the conversational form."""
    arguments = {
        "prompts": [request["messages"]],
        "completions": [[{"role": "assistant", "content": request["answer"]}]],
        **{name: [value] for name, value in request["columns"].items()},
    }
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in names}


def verl_arguments(request: Mapping[str, Any]) -> dict[str, Any]:
    """`ground_truth` is the row's, or that of its `reward_model`, where verl's own rows keep it."""
    columns = request["columns"]
    truth = columns["ground_truth"] if "ground_truth" in columns else columns["reward_model"]["ground_truth"]
    return {
        "data_source": columns.get("data_source"),
        "solution_str": request["answer"],
        "ground_truth": truth,
        "extra_info": columns.get("extra_info"),
    }


def finished(value: Any) -> Any:
    async def wait() -> Any:
        return await value

    return asyncio.run(wait()) if inspect.isawaitable(value) else value


def one(rewards: Any) -> Any:
    if len(rewards) != 1:
        raise ValueError(f"expected one reward for one completion; found {len(rewards)}")
    return rewards[0]


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

    async def scored(request: Mapping[str, Any]) -> dict[str, Any]:
        task = kind(kind.data_type().model_validate(request["columns"]["task"]))
        nodes: list[Any] = []
        for message in request["messages"]:
            turn = turns[message["role"]](content=message["content"])
            nodes.append(MessageNode(message=turn, parent=len(nodes) - 1 if nodes else None))
        answer = AssistantMessage(content=request["answer"], reasoning_content=request["reasoning"] or None)
        nodes.append(MessageNode(message=answer, parent=len(nodes) - 1, sampled=True))
        info = AgentInfo(config=AgentConfig())
        trace = vf.Trace(task=TraceTask(type=kind.__name__, data=task.data), agent=info, nodes=nodes)
        await task.score(trace)
        if not trace.rewards:
            raise ValueError(f"expected rewards of {kind.__name__} that need no runtime; found none")
        parts = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        parts |= {name: float(value) for name, value in trace.metrics.items() if value is not None}
        return {"score": number(trace.reward), "parts": parts}

    return lambda request: asyncio.run(scored(request))


KINDS = {"function": function, "verifiers": verifiers_taskset}


def main() -> None:
    runpy.run_path(sys.argv[1])["die_with_parent"]()  # a reward that hangs must not outlive its parent
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    score = KINDS[sys.argv[2]](sys.argv[3])
    print(READY, file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = score(request)
        except Exception as error:  # third-party code may raise anything; the error is the reply
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
