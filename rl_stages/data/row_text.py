"""The text by which rows are compared."""

from __future__ import annotations

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.messages import Message, parse_messages
from cascade_rl.rl_stages.data.rows import Row


def row_messages(row: Row) -> tuple[Message, ...]:
    """The messages of a demonstration or of a task's prompt. Raises UserError if the row has neither."""
    if "messages" in row:
        return parse_messages(row["messages"], "messages")
    params = row.get("responses_create_params")
    if not isinstance(params, dict):
        raise UserError("expected a row with 'messages' or with 'responses_create_params'; found neither")
    return parse_messages(params.get("input"), "responses_create_params.input")


def asked(row: Row) -> str:
    """The text of all user messages of the row."""
    return "\n".join(message["content"] for message in row_messages(row) if message["role"] == "user")
