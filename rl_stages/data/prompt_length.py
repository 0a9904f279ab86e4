"""The length of prompts in tokens of a model, and a filter on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.messages import Message, Tool, parse_tools
from cascade_rl.rl_stages.data.row_text import row_messages
from cascade_rl.rl_stages.data.rows import Row

Count = Callable[[Sequence[Message], Sequence[Tool]], int]


def token_counter(folder: Path) -> Count:
    """Counts the tokens of a prompt and its tools in the chat template of the model in `folder`. UserError if it has no
    tokenizer."""
    from transformers import AutoTokenizer

    from cascade_rl.rl_stages.data.tokenizer import encode_prompt  # imports transformers too

    if not (folder / "tokenizer_config.json").is_file():
        raise UserError(f"expected a model folder with a tokenizer; no such file: {folder / 'tokenizer_config.json'}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda messages, tools: len(encode_prompt(tokenizer, messages, tools))


class PromptLength:
    """Keeps the tasks whose prompt has `least` to `most` tokens in the chat template of the model in `folder`."""

    def __init__(self, folder: Path, least: int, most: int) -> None:
        if not 0 <= least <= most:
            raise UserError(f"expected prompt tokens 0 <= LEAST <= MOST; found {least} and {most}")
        self.least, self.most = least, most
        self._count = token_counter(folder)

    def __call__(self, row: Row) -> str | None:
        """Why the row is dropped; None if it is kept. Raises UserError for a row that is no task."""
        if "messages" in row:
            raise UserError("expected a task; found a demonstration: SFT stages drop what is too long themselves")
        messages, params = row_messages(row), row["responses_create_params"]
        tokens = self._count(messages, parse_tools(params.get("tools"), "responses_create_params.tools"))
        if tokens < self.least:
            return f"prompt of less than {self.least:,} tokens"
        return f"prompt of more than {self.most:,} tokens" if tokens > self.most else None
