"""What vLLM has sampled for a request that has ended or still runs, as a `Rollout`."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cascade_rl.engine.core.rollouts import Kept, Request, Rollout

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

    def part(self, request: Request, since: int, finish: str, rows: Rows) -> Rollout:
        """The tokens from number `since` on. Its prompt is all that is before them; its routes begin with those of the
        last token before them, if it continues a sample."""
        begun = request.begun_ids
        before = [*request.prompt_ids, *begun, *self.token_ids[:since]]
        starts = np.asarray(self.logprobs.start_indices[since:])
        tail = slice(int(starts[0]), None)
        first = starts - starts[0]  # index of the sampled token of each position
        return Rollout(
            id=request.id,
            prompt_ids=np.asarray(before, np.int64),
            token_ids=np.asarray(self.token_ids[since:], np.int64),
            logprobs=np.asarray(self.logprobs.logprobs[tail], np.float32)[first],
            routes=rows(len(before) - 1 if begun or since else 0),
            versions=tuple(self._versions_from(since)),
            finish=finish,
            kept=_kept(np.asarray(self.logprobs.token_ids[tail], np.int32), first),
        )

    def _versions_from(self, since: int) -> Iterator[tuple[int, int]]:
        ends = [start for _, start in self.versions[1:]] + [len(self.token_ids)]
        for (version, start), end in zip(self.versions, ends, strict=True):
            if end > since:
                yield version, max(start - since, 0)


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
