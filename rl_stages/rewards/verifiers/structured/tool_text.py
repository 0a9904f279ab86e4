"""Parses tool calls in an answer's text, in the two forms that the chat templates of these models ask for.

JSON:  <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>       (Hermes, Qwen3)
XML:   <tool_call><function=f><parameter=x>1</parameter></function></tool_call>   (Qwen3-Coder, Nemotron-3)

Tags are looked for one after another, so that the time is linear in the answer's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cascade_rl.rl_stages.rewards.verifiers.structured.documents import Malformed, parse_document
from cascade_rl.rl_stages.rewards.verifiers.structured.schema_types import admitted_types

Parameters = Mapping[str, Any]

_FUNCTION = re.compile(r"<function=([^<>\n]+)>(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>\n?")
_END = "</parameter>"
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
    around, bodies = _between(answer, "<tool_call>", "</tool_call>")
    if _TAG.search(around):
        raise Malformed("a <tool_call> without its other tag")
    return around.strip(), [_call(body.strip(), tools) for body in bodies]


def _between(text: str, opening: str, closing: str) -> tuple[str, list[str]]:
    """The text outside each pair of tags, joined, and that inside each."""
    outside, inside, place = [], [], 0
    while (start := text.find(opening, place)) >= 0 and (end := text.find(closing, start)) >= 0:
        outside.append(text[place:start])
        inside.append(text[start + len(opening) : end])
        place = end + len(closing)
    return "".join([*outside, text[place:]]), inside


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
    properties = schema.get("properties") or {}
    pairs = list(_pairs(text))
    arguments = {name: _value(value, admitted_types(properties.get(name), schema)) for name, value in pairs}
    if len(arguments) != len(pairs):
        raise Malformed("a parameter twice")
    return arguments


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Name and text of each parameter, without the line ends that the templates put around the text."""
    place = 0
    while match := _PARAMETER.match(text, place):
        if (end := text.find(_END, match.end())) < 0:
            break
        yield match.group(1), text[match.end() : end].removesuffix("\n")
        place = end + len(_END)
    if text[place:].strip():
        raise Malformed("text between the parameters")


def _value(text: str, types: frozenset[str]) -> Any:
    """The text unchanged if the parameter accepts only text; else its value in JSON, or in Python's words."""
    word = text.strip()
    if types == {"string"} or (types == {"string", "null"} and word not in ("null", "None")):
        return text
    if word in _WORDS:
        return _WORDS[word]
    try:
        return parse_document("json", word)
    except Malformed:
        return text


def parameters_by_tool(tools: object) -> dict[str, Parameters]:
    """The `tools` of a row's `responses_create_params`, by name. Raises ValueError if they have another form."""
    entries = [] if tools is None else tools
    if not isinstance(entries, list) or not all(map(_is_tool, entries)):
        raise ValueError(f'a list of {{"type": "function", "name": text, "parameters": schema}}; found {entries!r}')
    return {tool["name"]: tool.get("parameters") or {} for tool in entries}


def _is_tool(tool: object) -> bool:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return False
    parameters = tool.get("parameters") or {}
    return isinstance(parameters, dict) and isinstance(parameters.get("properties") or {}, dict)
