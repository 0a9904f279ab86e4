"""Conversations with everything that a chat template may render in a way of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cascade_rl.rl_stages.core.messages import Message, Tool, parse_tools


@dataclass(frozen=True)
class Sample:
    """A conversation in the form of `core/messages.py`; `settings` are for the tokenizer's apply_chat_template."""

    name: str
    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


TOOLS = parse_tools(
    [
        {
            "type": "function",
            "name": "send_mail",
            "description": " Sends a mail.\nNobody can call it back. ",
            "parameters": {
                "required": ["to", "urgent"],
                "additionalProperties": False,
                "type": "object",
                "properties": {
                    "to": {"type": "array", "items": {"type": "string"}, "description": " who "},
                    "urgent": {"default": False, "type": "boolean"},
                    "copies": {"minimum": 1, "type": "integer", "enum": [1, 2]},
                    "about": {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]},
                    "note": {"type": ["string", "null"], "description": "not for Zoë & <team>"},
                },
            },
            "strict": True,
        },
        {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}},
    ],
    "tools",
)
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "send_mail": {"to": ["Zoë", "Bob"], "urgent": True, "copies": 2, "about": {"topic": "<tea>"}, "note": "a\n\nb "},
    "now": {},
}
NOBODY = {"to": [], "urgent": False, "note": None}


def _called(name: str, arguments: Mapping[str, Any]) -> Message:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "Is Ann in?"}
ANSWERED = {"role": "assistant", "content": "She is.\n\nSince noon.", "reasoning_content": "I look.\nShe is."}
ASKED_AGAIN = {"role": "user", "content": "And Bob?"}
CALLS: Message = {"role": "assistant", "content": "", "tool_calls": [_called(*call) for call in ARGUMENTS.items()]}
OUTPUTS: tuple[Message, ...] = tuple({"role": "tool", "content": content} for content in ('{"sent": true}', "12:00\n"))
CALLED: tuple[Message, ...] = (ASKED, CALLS | {"reasoning_content": "I mail."}, *OUTPUTS)
TOLD: tuple[Message, ...] = (
    ASKED,
    {**CALLS, "content": "I mail them.", "tool_calls": [_called("send_mail", NOBODY)]},
    OUTPUTS[0],
)

SAMPLES = (
    Sample("question", (ASKED,)),
    Sample("question without thinking", (ASKED,), settings={"enable_thinking": False}),
    Sample("system", (SYSTEM, ASKED)),
    Sample("answer", (ASKED, ANSWERED), settings={"add_generation_prompt": False}),
    Sample("reasoning dropped", (SYSTEM, ASKED, ANSWERED, ASKED_AGAIN)),
    Sample("reasoning kept", (SYSTEM, ASKED, ANSWERED, ASKED_AGAIN), settings={"truncate_history_thinking": False}),
    Sample("history without reasoning", (ASKED, {"role": "assistant", "content": "Yes."}, ASKED_AGAIN)),
    Sample("tools", (ASKED,), TOOLS),
    Sample("tools and system", (SYSTEM, ASKED), TOOLS, {"enable_thinking": False}),
    Sample("calls", CALLED, TOOLS),
    Sample("calls without reasoning", TOLD, TOOLS, {"enable_thinking": False}),
    Sample("reasoning of calls dropped", (SYSTEM, *CALLED, ANSWERED, *TOLD, ASKED_AGAIN), TOOLS),
)
