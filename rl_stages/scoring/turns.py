"""Joins the turns of a sample into one rollout: ids, log-probs and routes as they were when each token was sampled."""

from collections.abc import Sequence

import numpy as np

from cascade_rl.engine.core.rollouts import Kept, Rollout


def join(turns: Sequence[Rollout]) -> Rollout:
    """The sample that was generated turn by turn. Its finish reason is the last turn's.

    The prompt of each turn is everything before it, followed by the environment's reply. The reply becomes part of the
    answer, with log-prob 0. An input position has the routes of the first turn that computed it: for a generated token
    those with which the next token was sampled, for a reply those of the turn that read it. Raises ValueError if a
    turn's prompt does not begin with everything before it.
    """
    first, last = turns[0], turns[-1]
    if len(turns) == 1:
        return first
    token_ids = np.concatenate([last.prompt_ids, last.token_ids])[len(first.prompt_ids) :]
    logprobs = np.zeros(len(token_ids), np.float32)
    generated = np.zeros(len(token_ids), bool)
    for turn in turns:
        span = _span(turn, first)
        if not np.array_equal(token_ids[: span.stop], _answer_until(turn, first)):
            raise ValueError(f"{turn.id}: a turn's prompt does not begin with the tokens of the turns before it")
        logprobs[span], generated[span] = turn.logprobs, True
    return Rollout(
        id=first.id,
        prompt_ids=first.prompt_ids,
        token_ids=token_ids,
        logprobs=logprobs,
        routes=_routes(turns),
        versions=_versions(turns),
        finish=last.finish,
        generated=generated,
        turns=len(turns),
        kept=_kept(turns, len(token_ids)),
        passports=tuple(passport for turn in turns for passport in turn.passports),
    )


def _span(turn: Rollout, first: Rollout) -> slice:
    """Where the turn's generated tokens are in the sample's answer."""
    start = len(turn.prompt_ids) - len(first.prompt_ids)
    return slice(start, start + len(turn.token_ids))


def _answer_until(turn: Rollout, first: Rollout) -> np.ndarray:
    """The sample's answer at the end of the turn, as the sampler had it."""
    return np.concatenate([turn.prompt_ids, turn.token_ids])[len(first.prompt_ids) :]


def _routes(turns: Sequence[Rollout]) -> np.ndarray | None:
    rows: list[np.ndarray] = []
    known = 0
    for turn in turns:
        if turn.routes is None:
            return None
        rows.append(turn.routes[known:])
        known = len(turn.routes)
    return np.concatenate(rows)


def _kept(turns: Sequence[Rollout], length: int) -> Kept | None:
    """The kept tokens of an answer of `length` tokens; none where the environment's replies are."""
    counts, ids = np.zeros(length, np.int32), list[np.ndarray]()
    for turn in turns:
        if turn.kept is not None:
            counts[_span(turn, turns[0])] = turn.kept.counts
            ids.append(turn.kept.ids)
    return Kept(np.concatenate(ids), counts) if ids else None


def _versions(turns: Sequence[Rollout]) -> tuple[tuple[int, int], ...]:
    """Version spans of the whole answer. A turn with the version of the turn before it begins no new span."""
    spans: list[tuple[int, int]] = []
    for turn in turns:
        offset = len(turn.prompt_ids) - len(turns[0].prompt_ids)
        for version, start in turn.versions:
            if not spans or spans[-1][0] != version:
                spans.append((version, offset + start))
    return tuple(spans)
