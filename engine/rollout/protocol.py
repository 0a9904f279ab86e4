"""The messages between the trainer's client and the engine's server. A `Rollout` is sent back as it is.

Commands are handled in the order in which they were sent, between two engine steps. Every command except `Submit` and
`Received` is answered by exactly one `Reply`. An engine that works without one says so (`Progress`), and sends parts of
the samples that it is drawing (`Rollout`s whose finish is PART).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_rl.engine.cluster.link import Invitation
from cascade_rl.engine.core.rollouts import Request
from cascade_rl.engine.core.settings import Check, RolloutConfig


@dataclass(frozen=True)
class Settings:
    """What a server needs to start. `last_parts`: the folder in which it leaves what it has drawn if it loses the
    trainer (last_parts.py); None: nowhere."""

    model_dir: str
    config: RolloutConfig
    seed: int
    last_parts: Path | None = None


@dataclass(frozen=True)
class StartServer:
    """What a node needs to start a server, a `module` that is called with a connection and the id of its parent: the
    numbers of its `cards` among those that the parent sees."""

    cards: range
    log_path: Path
    module: str


@dataclass(frozen=True)
class Call:
    """To the first rank of another node: call a function. With an invitation, it connects first and passes the
    connection as the first argument. The answer is what the function returns or raises."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    invitation: Invitation | None = None


@dataclass(frozen=True)
class Submit:
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Received:
    """The trainer has this turn, which had ended: it need not be left for another attempt."""

    request_id: str


@dataclass(frozen=True)
class UpdateWeights:
    """Load every weight from a safetensors file in Hugging Face names, or from the files of an index (.json). Answered
    by a `Stall`. `keep_cache`: the samples that are running keep their keys, values and states."""

    image_path: str
    version: int
    keep_cache: bool = False


@dataclass(frozen=True)
class JoinRefit:
    """Meet the trainer's ranks at a store. `first_rank` is the rank of this engine's first worker, after theirs."""

    address: str
    port: int
    meeting: str
    first_rank: int


@dataclass(frozen=True)
class BufferWeights:
    """Work goes on after the answer. Beside it every weight arrives in a buffer, from the trainer's ranks, which send
    then; the next `ReceiveWeights` puts them into the layers."""

    version: int
    check: Check


@dataclass(frozen=True)
class ReceiveWeights:
    """Receive every weight from the trainer's ranks, which send them now, or have sent them into the buffer. Otherwise
    as `UpdateWeights`."""

    version: int
    check: Check
    keep_cache: bool = False


@dataclass(frozen=True)
class Score:
    """Score given sequences. Answered by a list of `Scored`."""

    sequences: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Sleep:
    """Release device memory; weights move to the host. The next command that needs them brings them back."""


@dataclass(frozen=True)
class AskHealth:
    """Answered by a `Health`."""


@dataclass(frozen=True)
class Health:
    """State of a live engine. `version` is None before the first weights; counts are since its start."""

    version: int | None
    unfinished: int
    steps: int
    generated_tokens: int


@dataclass(frozen=True)
class Stall:
    """How long an engine made no step, for new weights: in seconds, and in steps of their mean length until then.
    `running` is the number of samples that waited."""

    running: int
    seconds: float
    steps: float


@dataclass(frozen=True)
class Progress:
    """Sent unasked when the engine has started, and a few times in `silence_limit_s` while it works, if it has sampled
    or scored something since: it has made so many steps."""

    steps: int


@dataclass(frozen=True)
class Reply:
    value: Any = None
