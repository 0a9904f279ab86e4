"""What vLLM has sampled for a request that has ended or still runs, as a `Rollout`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cascade_rl.engine.core.passport import passport_of
from cascade_rl.engine.core.rollouts import PART, Kept, Request, Rollout

if TYPE_CHECKING:
    from vllm.logprobs import FlatLogprobs
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.llm_engine import LLMEngine

Rows = Callable[[int], np.ndarray | None]
"""The experts of the input positions from one on, int16 [positions, moe_layers, topk]; None without experts."""


class Sampled(NamedTuple):
    """All that an engine has sampled for a request.

    versions  (weight version, index of the first token that was sampled with it)
    """

    token_ids: Sequence[int]
    logprobs: "FlatLogprobs"
    versions: Sequence[tuple[int, int]]

    def part(self, request: Request, since: int, finish: str, rows: Rows, until: int | None = None) -> Rollout:
        """The tokens from number `since` on, up to number `until`. Its prompt is all that is before them; its routes
        begin with those of the last token before them, if it continues a sample."""
        begun = request.begun_ids
        before = [*request.prompt_ids, *begun, *self.token_ids[:since]]
        until = len(self.token_ids) if until is None else until
        starts = np.asarray(self.logprobs.start_indices[since:until])
        own = slice(int(starts[0]), next(iter(self.logprobs.start_indices[until : until + 1]), None))
        first = starts - starts[0]  # index of the sampled token of each position
        known = len(before) - 1 if begun or since else 0  # positions whose routes an earlier part has
        routes = rows(known)
        return Rollout(
            id=request.id,
            prompt_ids=np.asarray(before, np.int64),
            token_ids=np.asarray(self.token_ids[since:until], np.int64),
            logprobs=np.asarray(self.logprobs.logprobs[own], np.float32)[first],
            routes=None if routes is None else routes[: len(before) + until - since - 1 - known],
            versions=tuple(
                (version, max(start - since, 0)) for version, start, end in self.spans if start < until and end > since
            ),
            finish=finish,
            kept=_kept(np.asarray(self.logprobs.token_ids[own], np.int32), first),
        )

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """(weight version, index of its first token, that after its last one)"""
        ends = [start for _, start in self.versions[1:]] + [len(self.token_ids)]
        return [(*span, end) for span, end in zip(self.versions, ends, strict=True)]


class Drawing(NamedTuple):
    """What an engine has drawn of a turn. `cache`: weight version of the oldest state that it may have read."""

    request: Request
    sampled: Sampled
    rows: Rows
    cache: int

    def part(self, since: int, finish: str, until: int | None = None) -> Rollout:
        """As `Sampled.part`, with its passport, and with the prompt of the turn."""
        part = self.sampled.part(self.request, since, finish, self.rows, until)
        # A part may have no token since the caches were dropped.
        told = replace(part, passports=(passport_of(part, self.request, min(self.cache, part.newest)),))
        return replace(told, prompt_ids=np.asarray(self.request.prompt_ids, np.int64))

    def parts(self, count: int) -> list[Rollout]:
        """The first `count` tokens, a part for each weight version: who goes on may have the older weights alone."""
        return [self.part(start, PART, min(end, count)) for _, start, end in self.sampled.spans if start < count]


def of_finished(output: "RequestOutput") -> Sampled:
    """What was sampled for a request that has ended."""
    completion = output.outputs[0]
    spans = [(int(span.version), span.start) for span in completion.weight_versions]
    return Sampled(completion.token_ids, completion.logprobs, spans)


def of_running(engine: "LLMEngine") -> dict[str, tuple[str, Sampled]]:
    """What was sampled for each request that has a token and runs, by its id, with vLLM's own id for it."""
    found = {}
    for own_id, state in engine.output_processor.request_states.items():
        if tokens := state.detokenizer.output_token_ids:
            spans = [(int(version), start) for version, start in state.weight_version_starts]
            found[state.external_req_id] = own_id, Sampled(tokens, state.logprobs_processor.logprobs, spans)
    return found


def _kept(ids: np.ndarray, first: np.ndarray) -> Kept | None:
    """`ids` holds, for each position, the sampled token (at `first`), then the kept tokens, then padding below 0
    (`sampler_logprob`)."""
    kept = ids >= 0
    kept[first] = False
    return Kept(ids[kept], np.add.reduceat(kept, first, dtype=np.int32)) if kept.any() else None
