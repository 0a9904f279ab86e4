"""Conversations, checked: chat messages and NeMo-Gym's history items in the one form that chat templates read.

{"role": "system" | "user", "content": text}
{"role": "assistant", "content": text, "reasoning_content"?: text, "tool_calls"?: [call]}
{"role": "tool", "content": text, "tool_call_id"?: text}
call = {"type": "function", "id"?: text, "function": {"name": text, "arguments": object}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cascade_rl.engine.core.errors import UserError

Message = dict[str, Any]
Tool = Mapping[str, Any]

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
ITEMS = ("message", "reasoning", "function_call", "function_call_output")  # of OpenAI's Responses API
PARTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
TOOL_FORM = '{"type": "function", "name": text, "parameters": schema}'
SHOWN = 300  # characters of a bad value that an error quotes


def parse_messages(value: object, where: str) -> tuple[Message, ...]:
    """The conversation in `value`. A plain text is one user turn.

    Reasoning and calls that are separate items become parts of one assistant turn. Raises UserError, prefixed with
    `where`, for any other form and for a tool's output without an earlier call.
    """
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise UserError(f"{where}: expected a non-empty list of messages; found {shown(value)}")
    messages: list[Message] = []
    for position, item in enumerate(items):
        try:
            _add(messages, item)
        except UserError as error:
            raise UserError(f"{where}[{position}]: {error}") from None
    if messages[0]["role"] not in ("system", "user"):
        raise UserError(
            f"{where}: expected the first turn to be the system's or the user's; found {shown(messages[0])}"
        )
    if not all(map(_says_something, messages)):
        raise UserError(
            f"{where}: expected an answer or a call in each assistant turn; found a turn of reasoning alone"
        )
    return tuple(messages)


def parse_tools(value: object, where: str) -> tuple[Tool, ...]:
    """Tools, flat (NeMo-Gym) or nested (chat), in the nested form of chat templates. Raises UserError otherwise.

    `strict` stays if it is not None: NeMo-Gym gives it to vLLM, and Nemotron-3's template shows it.
    """
    tools = [] if value is None else value
    if not isinstance(tools, list):
        raise UserError(f"expected '{where}' to be a list of {TOOL_FORM}; found {shown(value)}")
    return tuple(_tool(tool, where) for tool in tools)


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _add(messages: list[Message], item: object) -> None:
    if not isinstance(item, dict):
        raise UserError(f'expected {{"role": one of {", ".join(ROLES)}, "content": text}}; found {shown(item)}')
    kind = item.get("type") or "message"
    if kind == "message":
        _add_message(messages, item)
    elif kind == "reasoning":
        _open_turn(messages, reasoned=False)["reasoning_content"] = _text(
            item.get("content") or item.get("summary"), "summary"
        )
    elif kind == "function_call":
        turn = _open_turn(messages, reasoned=True)
        turn.setdefault("tool_calls", []).append(_call(item, item.get("call_id")))
    elif kind == "function_call_output":
        _add_output(messages, item.get("output"), item.get("call_id"))
    else:
        raise UserError(f"expected an item whose 'type' is one of {', '.join(ITEMS)}; found {shown(kind)}")


def _add_message(messages: list[Message], item: Mapping[str, Any]) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise UserError(f'expected {{"role": one of {", ".join(ROLES)}, "content": text}}; found {shown(item)}')
    if role == "tool":
        _add_output(messages, item.get("content"), item.get("tool_call_id"))
    elif role == "assistant":
        _add_assistant(messages, item)
    else:
        messages.append({"role": ROLES[role], "content": _text(item.get("content"), "content")})


def _add_assistant(messages: list[Message], item: Mapping[str, Any]) -> None:
    calls = [_nested_call(call) for call in _list(item.get("tool_calls"), "tool_calls")]
    content = "" if calls and item.get("content") is None else _text(item.get("content"), "content")
    reasoning = _optional_text(item, "reasoning_content") or _optional_text(item, "reasoning")
    if not reasoning:
        reasoning, content = _split_reasoning(content)
    alone = messages[-1] if messages and not _says_something(messages[-1]) else None  # its reasoning came before it
    turn: Message = alone if alone and not reasoning else {"role": "assistant"}
    turn["content"] = content
    if reasoning.strip():
        turn["reasoning_content"] = reasoning.strip()
    if calls:
        turn["tool_calls"] = calls
    if turn is not alone:
        messages.append(turn)


def _open_turn(messages: list[Message], *, reasoned: bool) -> Message:
    """The assistant turn to extend: the last message if it is one and `reasoned`, otherwise a new turn."""
    if not (messages and messages[-1]["role"] == "assistant" and reasoned):
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _says_something(message: Message) -> bool:
    return "reasoning_content" not in message or bool(message["content"] or message.get("tool_calls"))


def _add_output(messages: list[Message], output: object, call_id: object) -> None:
    if call_id is not None and not isinstance(call_id, str):
        raise UserError(f"expected the id of a call to be text; found {shown(call_id)}")
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    if any(call_id is None or call.get("id", call_id) == call_id for call in calls):
        message = {"role": "tool", "content": _text(output, "output")}
        messages.append(message if call_id is None else {**message, "tool_call_id": call_id})
        return
    raise UserError(f"expected the output of an earlier call; found id {shown(call_id)}, which no earlier call has")


def _split_reasoning(content: str) -> tuple[str, str]:
    """Splits a content that holds both reasoning and answer."""
    before, closed, after = content.partition("</think>")
    if not closed:
        if "<think>" in content:
            raise UserError("expected reasoning to end with </think>; found a <think> that is never closed")
        return "", content
    return before.partition("<think>")[2] if "<think>" in before else before, after.lstrip()


def _call(function: Mapping[str, Any], call_id: object) -> Message:
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise UserError(f"expected a call's 'name' to be text; found {shown(name)}")
    if isinstance(arguments, str):
        arguments = _json(arguments)
    if not isinstance(arguments, dict):
        raise UserError(f"expected the 'arguments' of {name} to be a JSON object; found {shown(arguments)}")
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if call_id is None:
        return call
    if not isinstance(call_id, str):
        raise UserError(f"expected the id of a call to be text; found {shown(call_id)}")
    return {**call, "id": call_id}


def _nested_call(call: object) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise UserError(f'expected a call {{"type": "function", "function": {{...}}}}; found {shown(call)}')
    return _call(function, call.get("id"))


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _text(value: object, key: str) -> str:
    """Text, or a list of text parts, joined."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(map(_is_part, value)):
        return "".join(part["text"] for part in value)
    raise UserError(f"expected '{key}' to be text or a list of text parts; found {shown(value)}")


def _is_part(value: object) -> bool:
    return isinstance(value, dict) and value.get("type") in PARTS and isinstance(value.get("text"), str)


def _optional_text(item: Mapping[str, Any], key: str) -> str:
    return "" if item.get(key) is None else _text(item[key], key)


def _list(value: object, key: str) -> Sequence[Any]:
    if value is not None and not isinstance(value, list):
        raise UserError(f"expected '{key}' to be a list; found {shown(value)}")
    return value or ()


def _tool(tool: object, where: str) -> Tool:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not _is_function(function):
        raise UserError(f"expected '{where}' to be a list of {TOOL_FORM}; found {shown(tool)}")
    unset = ("type",) if function.get("strict") is not None else ("type", "strict")
    return {"type": "function", "function": {name: item for name, item in function.items() if name not in unset}}


def _is_function(function: Mapping[str, Any]) -> bool:
    schema = _or_empty(function.get("parameters"), {})
    return (
        isinstance(function.get("name"), str)
        and isinstance(_or_empty(function.get("description"), ""), str)
        and isinstance(schema, dict)
        and isinstance(_or_empty(schema.get("properties"), {}), dict)
    )


def _or_empty(value: object, empty: object) -> object:
    return empty if value is None else value
