"""A turn in parts, as engines tell it while they sample. Each part has the tokens after those of the part before it."""

from collections.abc import Iterator, Sequence

import numpy as np

from cascade_rl.engine.core.rollouts import Kept, Rollout


def joined(parts: Sequence[Rollout]) -> Rollout:
    """The parts of one turn, in their order, as one part. Its finish is the last one's.

    Each has the prompt of the turn, its own tokens, and the routes of the positions after those of the part before. Its
    passports are those of all: each says which tokens it is of.
    """
    first, last = parts[0], parts[-1]
    if first is last:
        return first
    routes = [part.routes for part in parts if part.routes is not None]
    return Rollout(
        id=first.id,
        prompt_ids=first.prompt_ids,
        token_ids=np.concatenate([part.token_ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        routes=np.concatenate(routes) if routes else None,
        versions=tuple(_versions(parts)),
        finish=last.finish,
        kept=_kept(parts),
        passports=tuple(passport for part in parts for passport in part.passports),
    )


def _versions(parts: Sequence[Rollout]) -> Iterator[tuple[int, int]]:
    """The spans of all. A part with the version of the one before begins no new span."""
    newest, at = None, 0
    for part in parts:
        for version, start in part.versions:
            if version != newest:
                yield version, at + start
            newest = version
        at += len(part.token_ids)


def _kept(parts: Sequence[Rollout]) -> Kept | None:
    kept = [part.kept or Kept(np.zeros(0, np.int32), np.zeros(len(part.token_ids), np.int32)) for part in parts]
    ids = np.concatenate([one.ids for one in kept])
    return Kept(ids, np.concatenate([one.counts for one in kept])) if len(ids) else None
