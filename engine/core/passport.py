"""What an engine says of a turn that it has sampled, compared with what the trainer is about to learn from.

Between the two lie a wire, a ledger, turns that are joined, a restart perhaps, and the code of many people.
"""

import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from cascade_rl.engine.core.rollouts import Passport, Request, Rollout
from cascade_rl.engine.core.train_sequence import TrainSequence


def passport_of(turn: Rollout, request: Request, cache: int) -> Passport:
    """The passport of a turn that an engine has just sampled for `request`."""
    start = len(turn.prompt_ids)
    return Passport(
        start=start,
        end=start + len(turn.token_ids),
        seed=request.seed,
        temperature=request.sampling.temperature,
        cache=cache,
        tokens=_ids(np.concatenate([turn.prompt_ids, turn.token_ids])),
        logprobs=_floats(turn.logprobs),
        routes=_routes(turn.routes, slice(-len(turn.token_ids), None)),
    )


def faults(passports: Sequence[Passport], sequence: TrainSequence, caches: Sequence[range]) -> Iterator[str]:
    """What does not hold of the turns of a sample, in its `sequence`. `caches`: for each turn, the weight versions of
    which the oldest state that it read may be."""
    known = tokens = 0
    for passport, allowed in zip(passports, caches, strict=True):
        tokens, known = _ids(sequence.token_ids[known : passport.end], tokens), passport.end
        own = slice(passport.start - 1, passport.end - 1)
        if passport.cache not in allowed:
            expected = f"{allowed.start}" if len(allowed) == 1 else f"{allowed.start} to {allowed.stop - 1}"
            yield f"cache: kept since weight version {passport.cache}, expected {expected}"
        if passport.temperature != sequence.temperature:
            yield f"temperature: log-probs are at {passport.temperature}, the trainer's at {sequence.temperature}"
        if passport.tokens != tokens:
            yield f"tokens: the first {known} ids are not those that were sampled, as after text was tokenised again"
        if passport.logprobs != _floats(sequence.per_token["rollout_logprob"][own]):
            yield "log-probs: not those of the sampled tokens"
        if passport.routes != _routes(sequence.routes, own):
            yield "routes: not the experts of the first computation, as after a pre-emption that computed them again"


def _ids(ids: np.ndarray, before: int = 0) -> int:
    """Of the ids and those before them, whose CRC is `before`."""
    return zlib.crc32(np.ascontiguousarray(ids, np.int64), before)


def _floats(values: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(values, np.float32))


def _routes(routes: np.ndarray | None, rows: slice) -> int:
    return 0 if routes is None else zlib.crc32(np.ascontiguousarray(routes[rows], np.int16))
