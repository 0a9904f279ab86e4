"""Duplicates: rows whose conversations say the same but for case and white space. Of each the first is kept."""

from __future__ import annotations

import hashlib
import json

from cascade_rl.rl_stages.data.row_text import row_messages
from cascade_rl.rl_stages.data.rows import Row


class Deduplicator:
    """Demonstrations are compared with their answers, tasks by their prompts; 16 bytes of each stay in memory."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()

    def __call__(self, row: Row) -> str | None:
        """Why the row is dropped, None where it is kept. UserError on a row without messages."""
        turns = [
            (message["role"], " ".join(message["content"].casefold().split()), message.get("tool_calls"))
            for message in row_messages(row)
        ]
        key = hashlib.blake2b(json.dumps(turns, sort_keys=True).encode(), digest_size=16).digest()
        if key in self.seen:
            return "duplicate"
        self.seen.add(key)
        return None
