"""Parses tool calls in an answer's text, in the two forms that the chat templates of these models ask for.

JSON:  <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>       (Hermes, Qwen3)
XML:   <tool_call><function=f><parameter=x>1</parameter></function></tool_call>   (Qwen3-Coder, Nemotron-3)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cascade_rl.rl_stages.rewards.verifiers.structured.documents import Malformed, parse_document

Parameters = Mapping[str, Any]

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^<>\n]+)>(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
_WORDS = {"True": True, "False": False, "None": None}  # as the templates of Nemotron-3 show them
_TAG = re.compile(r"</?tool_call>")


@dataclass(frozen=True)
class ToolCall:
    """One call; `arguments` are plain JSON values."""

    name: str
    arguments: Mapping[str, Any]


def split_calls(answer: str, tools: Mapping[str, Parameters]) -> tuple[str, list[ToolCall]]:
    """The text around the calls, stripped, and the calls in their order.

    `tools` maps a name to the JSON schema of its parameters, which says whether a value of the XML form is text.
    Raises Malformed on a call that does not parse or that is not closed.
    """
    calls = [_call(body.strip(), tools) for body in _CALL.findall(answer)]
    rest = _CALL.sub("", answer).strip()
    if _TAG.search(rest):
        raise Malformed("a <tool_call> without its other tag")
    return rest, calls


def _call(body: str, tools: Mapping[str, Parameters]) -> ToolCall:
    if match := _FUNCTION.fullmatch(body):
        name = match.group(1).strip()
        return ToolCall(name, _parameters(match.group(2).strip(), tools.get(name, {})))
    call = parse_document("json", body)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise Malformed('a call that is not {"name": text, "arguments": object}')
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        arguments = parse_document("json", arguments)
    if not isinstance(arguments, dict):
        raise Malformed("arguments that are not an object")
    return ToolCall(call["name"], arguments)


def _parameters(text: str, schema: Parameters) -> dict[str, Any]:
    if _PARAMETER.sub("", text).strip():
        raise Malformed("text between the parameters")
    pairs = _PARAMETER.findall(text)
    properties = schema.get("properties", {})
    arguments = {name: _value(value, properties.get(name, {})) for name, value in pairs}
    if len(arguments) != len(pairs):
        raise Malformed("a parameter twice")
    return arguments


def _value(text: str, schema: object) -> Any:
    """The text unchanged if the schema accepts only text; else its value in JSON, or in Python's words."""
    types, word = _types(schema), text.strip()
    if types == {"string"} or (types == {"string", "null"} and word not in ("null", "None")):
        return text
    if word in _WORDS:
        return _WORDS[word]
    try:
        return parse_document("json", word)
    except Malformed:
        return text


def _types(schema: object) -> set[str]:
    """The JSON types that a schema names, itself or in `anyOf`."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type") or ()
    return {named} if isinstance(named, str) else set(named).union(*map(_types, schema.get("anyOf") or ()))


def parameters_by_tool(tools: object) -> dict[str, Parameters]:
    """The `tools` of a row's `responses_create_params`, by name. Raises ValueError if they have another form."""
    entries = [] if tools is None else tools
    if not isinstance(entries, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("name"), str) for tool in entries
    ):
        raise ValueError(f'a list of {{"type": "function", "name": text, "parameters": schema}}; found {entries!r}')
    return {tool["name"]: tool.get("parameters") or {} for tool in entries}
