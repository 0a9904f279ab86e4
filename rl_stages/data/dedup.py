"""Deduplication: of rows whose conversations differ only in case and white space, the first is kept."""

from __future__ import annotations

import hashlib
import json

from cascade_rl.rl_stages.data.row_text import row_messages
from cascade_rl.rl_stages.data.rows import Row


class Deduplicator:
    """Compares demonstrations by prompt and answer, and tasks by prompt. Keeps a digest of 16 bytes per row."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()

    def __call__(self, row: Row) -> str | None:
        """Why the row is dropped; None if it is kept. Raises UserError for a row without messages."""
        turns = [
            (message["role"], " ".join(message["content"].casefold().split()), message.get("tool_calls"))
            for message in row_messages(row)
        ]
        key = hashlib.blake2b(json.dumps(turns, sort_keys=True).encode(), digest_size=16).digest()
        if key in self.seen:
            return "duplicate"
        self.seen.add(key)
        return None
