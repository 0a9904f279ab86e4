"""The trainer's side of a rollout engine."""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from cascade_rl.engine.config import RolloutConfig
from cascade_rl.engine.errors import UserError
from cascade_rl.engine.rollout.process import EngineDied, EngineProcess
from cascade_rl.engine.rollout.protocol import (
    AskHealth,
    Health,
    Pause,
    Resume,
    Score,
    Settings,
    Submit,
    UpdateWeights,
)
from cascade_rl.engine.sample import Request, Rollout, Scored

__all__ = ["EngineDied", "RolloutEngine"]


class RolloutEngine:
    """One vLLM engine in a process of its own; a context manager.

    Guarantees: every submitted id comes out of `results()` exactly once, also across `restart()`; a sample
    never mixes weight versions without its spans saying so; after `update_weights` returns, no cached key,
    value or state of older weights is used and the file may be overwritten.

    The constructor returns at once while the engine starts; `health()` waits for it. The engine starts
    without weights: the first ones come from `update_weights`, and sampling before is an error. Create it in
    a thread that outlives it: the server is killed with that thread.

    Every method raises `EngineDied` when the server's process is gone.
    """

    def __init__(self, model_dir: str | Path, config: RolloutConfig, seed: int, log_path: str | Path):
        self._settings = Settings(str(model_dir), config, seed)
        self._log_path = Path(log_path)
        self._vocab_size: int = json.loads((Path(model_dir) / "config.json").read_text())["vocab_size"]
        self._version: int | None = None
        self._pending: dict[str, Request] = {}
        self._orphans: tuple[Request, ...] = ()
        self._arrived: deque[Rollout] = deque()
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> int | None:
        """Version of the weights that the engine samples from; None before the first."""
        return self._version

    @property
    def pid(self) -> int:
        """Process id, which is also the process group id, of the server."""
        return self._process.pid

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests. Those of one call enter the engine together, whatever its timing.

        Raises UserError for a request that the engine cannot hold, ValueError for an id that is still
        pending, RuntimeError before the first weights.
        """
        self._require_weights("submit")
        batch = {request.id: request for request in requests}
        if taken := batch.keys() & self._pending.keys():
            raise ValueError(f"request ids must be new, found pending ones: {sorted(taken)[:8]}")
        for request in batch.values():
            self._check(request)
        self._pending |= batch
        self._send(Submit(tuple(batch.values())))

    def results(self) -> Iterator[Rollout]:
        """Finished samples in finishing order, until none is pending. Waits for ever on a paused engine."""
        while self._pending:
            rollout = self._arrived.popleft() if self._arrived else self._process.rollout()
            if rollout is None:
                raise self._died()
            del self._pending[rollout.id]
            yield rollout

    def pause(self) -> None:
        """Stop between two steps; running requests keep their place. On return nothing runs."""
        self._call(Pause())
        self._paused = True

    def resume(self) -> None:
        """Undo `pause`."""
        self._call(Resume())
        self._paused = False

    def update_weights(self, image_path: str | Path, version: int) -> None:
        """Load all weights from a safetensors file in Hugging Face names, also while requests run.

        Running requests go on with the new weights, their caches recomputed. After a `restart` this also
        sends the pending requests again. Raises ValueError when `version` is not newer than the engine's.
        """
        if self._version is not None and version <= self._version:
            raise ValueError(f"weight version must grow: expected more than {self._version}, found {version}")
        self._call(UpdateWeights(str(image_path), version))
        self._version = version
        if self._orphans:
            self._send(Submit(self._orphans))
            self._orphans = ()

    def score(self, sequences: Sequence[Sequence[int]]) -> list[Scored]:
        """Log-probs of each token after the first, at temperature 1, and the routes taken.

        Running requests advance meanwhile. Raises RuntimeError before the first weights and on a paused
        engine.
        """
        self._require_weights("score")
        if self._paused:
            raise RuntimeError("expected a running engine, found a paused one: call resume() before score()")
        return self._call(Score(tuple(tuple(map(int, ids)) for ids in sequences)))

    def health(self) -> Health:
        """State of the engine, once it has started and between two of its steps."""
        return self._call(AskHealth())

    def restart(self) -> None:
        """Replace the server's process, dead or alive. `update_weights` sends pending requests again."""
        self._process.kill()
        while (rollout := self._process.rollout()) is not None:
            self._arrived.append(rollout)
        self._start()

    def close(self) -> None:
        """End the server's process. Pending requests are lost."""
        self._process.kill()

    def _start(self) -> None:
        arrived = {rollout.id for rollout in self._arrived}
        self._orphans = tuple(request for request in self._pending.values() if request.id not in arrived)
        self._version = None
        self._paused = False
        self._process = EngineProcess(self._settings, self._log_path)

    def _send(self, message: Any) -> None:
        try:
            self._process.send(message)
        except OSError as gone:
            raise self._died() from gone

    def _call(self, message: Any) -> Any:
        self._send(message)
        reply = self._process.reply()
        if reply is None:
            raise self._died()
        return reply.value

    def _died(self) -> EngineDied:
        return self._process.obituary(tuple(self._pending))

    def _require_weights(self, action: str) -> None:
        if self._version is None:
            raise RuntimeError(f"cannot {action}: the engine has no weights yet, call update_weights() first")

    def _check(self, request: Request) -> None:
        limit = self._settings.config.max_model_len
        length = len(request.prompt_ids) + request.sampling.max_new_tokens
        if not request.prompt_ids or request.sampling.max_new_tokens < 1 or length > limit:
            raise UserError(
                f"request {request.id}: expected a prompt and new tokens of at most {limit} together, found "
                f"{len(request.prompt_ids)} + {request.sampling.max_new_tokens}: change max_model_len or "
                "max_new_tokens"
            )
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self._vocab_size:
            raise UserError(
                f"request {request.id}: expected token ids in [0, {self._vocab_size}), found "
                f"{min(request.prompt_ids)} to {max(request.prompt_ids)}: tokenizer and model do not match"
            )
