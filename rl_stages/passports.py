"""Refuses, before an update, samples that are not what an engine has sampled from weights that they may be of."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

from cascade_rl.engine.core.passport import faults
from cascade_rl.engine.core.rollouts import Rollout
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.rl_stages.agreement import Mismatch
from cascade_rl.rl_stages.scoring.age import token_versions
from cascade_rl.rl_stages.scoring.scored_sample import Sample

TOLD = 3


class BrokenPassport(Mismatch):
    """A sample is not what its engine said of it, or of weights that a step must not learn from."""


def require_passports(
    samples: Sequence[Sample], sequences: Sequence[TrainSequence], step: int, config: RolloutConfig
) -> None:
    """Raises BrokenPassport, which names each fault, unless what the trainer is to learn from was sampled so.

    Rank 0 has the samples' tokens: on the others there is nothing to compare.

    An engine of one's own need not give passports, but then to no sample: of those only the versions are checked.
    `config` says how old a sample's first token may be, and whether engines keep caches when new weights come.
    """
    if not sequences:
        return
    given = {bool(sample.rollout.passports) for sample in samples}
    lost = [] if len(given) < 2 else ["passport: some samples have none"]
    oldest = max(step - config.max_staleness, 0)
    check = partial(_check, step=step, oldest=oldest, keep_cache=config.cache_at_refit == "kept")
    with ThreadPoolExecutor() as threads:  # gigabytes of routes, and CRC-32 lets other threads run
        found = lost + [fault for told in threads.map(check, samples, sequences) for fault in told]
    if found:
        more = f" and {len(found) - TOLD} more" if len(found) > TOLD else ""
        raise BrokenPassport(
            f"step {step + 1}: expected samples as the engines gave them, found {'; '.join(found[:TOLD])}{more}. The "
            "weights are unchanged, and the ledger of these samples is removed: start the run again, which draws them "
            "anew. If it happens again, what stands between engine and trainer changes them"
        )


def _check(sample: Sample, sequence: TrainSequence, step: int, oldest: int, keep_cache: bool) -> list[str]:
    rollout = sample.rollout
    told = [*_of_versions(rollout.versions, len(rollout.token_ids), step, oldest)]
    if not told:
        told = [*faults(rollout.passports, sequence, _caches(rollout, oldest if keep_cache else None))]
    return [f"{rollout.id}: {fault}" for fault in told]


def _caches(rollout: Rollout, oldest: int | None) -> list[range]:
    """For each turn, the versions of which its cache may be: that of its last token, or from `oldest` to that of its
    first."""
    versions, prompt = token_versions(rollout).tolist(), len(rollout.prompt_ids)
    turns = [(versions[turn.start - prompt], versions[turn.end - prompt - 1]) for turn in rollout.passports]
    return [range(last, last + 1) if oldest is None else range(oldest, first + 1) for first, last in turns]


def _of_versions(spans: Sequence[tuple[int, int]], tokens: int, step: int, oldest: int) -> Iterator[str]:
    versions, starts = [version for version, _ in spans], [start for _, start in spans]
    if starts[:1] != [0] or not (_rise(starts) and _rise(versions)) or starts[-1] >= tokens:
        yield f"version: expected spans that begin with the first token and rise, found {spans}"
    elif not all(oldest <= version <= step for version, _ in spans):
        yield f"version: expected {oldest} to {step}, which were sent and are not too old, found {spans}"


def _rise(numbers: Sequence[int]) -> bool:
    return all(one < other for one, other in pairwise(numbers))
