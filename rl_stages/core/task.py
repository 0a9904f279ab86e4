"""A task: one prompt and what its verifier reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cascade_rl.rl_stages.core.messages import Message, Tool


@dataclass(frozen=True)
class Task:
    """One prompt and what its verifier reads. `id` is unique in its source and the same in every run.

    tools     what the model may call, as chat templates take it: {"type": "function", "function": {...}}
    thinking  the mode that the chat template is asked for; None leaves it to the template
    """

    id: str
    domain: str
    messages: tuple[Message, ...]
    metadata: Mapping[str, Any]
    tools: tuple[Tool, ...] = ()
    thinking: bool | None = None
