"""The text by which rows are compared."""

from __future__ import annotations

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.messages import Message, parse_messages, shown
from cascade_rl.rl_stages.data.rows import Row


def row_messages(row: Row) -> tuple[Message, ...]:
    """The messages of a demonstration or of a task's prompt. Raises UserError if the row has neither."""
    if "messages" in row or "completion" in row:
        return conversation(row)
    if "prompt" in row:
        return parse_messages(row["prompt"], "prompt")
    params = row.get("responses_create_params")
    if not isinstance(params, dict):
        raise UserError("expected a row with 'messages', 'prompt' or 'responses_create_params'; found none of them")
    return parse_messages(params.get("input"), "responses_create_params.input")


def conversation(row: Row) -> tuple[Message, ...]:
    """That of a demonstration: `messages`, or TRL's `prompt` and `completion`. Raises UserError otherwise."""
    if "completion" not in row:
        return parse_messages(row.get("messages"), "messages")
    prompt, completion = row.get("prompt"), row["completion"]
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    answer = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    if not isinstance(turns, list) or not isinstance(answer, list):
        raise UserError(f"expected 'prompt' and 'completion' to be texts or messages; found {shown(prompt)}")
    return parse_messages([*turns, *answer], "prompt + completion")


def asked(row: Row) -> str:
    """The text of all user messages of the row."""
    return "\n".join(message["content"] for message in row_messages(row) if message["role"] == "user")
