"""Refuses, before an update, samples that are not what an engine has sampled from weights that they may be of."""

from collections.abc import Iterator, Sequence

from cascade_rl.engine.backend.ranks import from_all, share
from cascade_rl.engine.core.passport import faults
from cascade_rl.engine.core.train_sequence import TrainSequence
from cascade_rl.rl_stages.agreement import Mismatch
from cascade_rl.rl_stages.scoring.age import ages
from cascade_rl.rl_stages.scoring.scored_sample import Sample

TOLD = 3


class BrokenPassport(Mismatch):
    """A sample is not what its engine said of it, or of weights that a step must not learn from."""


def require_passports(
    samples: Sequence[Sample], sequences: Sequence[TrainSequence], step: int, max_staleness: int
) -> None:
    """Raises BrokenPassport, which names each fault, unless what the trainer is to learn from was sampled so.

    Collective: each rank looks at a part of the samples, and all raise the same.

    An engine of one's own need not give passports, but then to no sample: of those only the versions are checked.
    """
    given = {bool(sample.rollout.passports) for sample in samples}
    lost = [] if len(given) < 2 else ["passport: some samples have none"]
    pairs = share(list(zip(samples, sequences, strict=True)))
    own = [f"{pair[0].rollout.id}: {fault}" for pair in pairs for fault in _faults(*pair, step, max_staleness)]
    found = lost + [fault for part in from_all(own) for fault in part]
    if found:
        more = f" and {len(found) - TOLD} more" if len(found) > TOLD else ""
        raise BrokenPassport(
            f"step {step + 1}: expected samples as the engines gave them, found {'; '.join(found[:TOLD])}{more}. The "
            "weights are unchanged, and the ledger of these samples is removed: start the run again, which draws them "
            "anew. If it happens again, what stands between engine and trainer changes them"
        )


def _faults(sample: Sample, sequence: TrainSequence, step: int, max_staleness: int) -> Iterator[str]:
    rollout, oldest = sample.rollout, max(step - max_staleness, 0)
    versions, starts = zip(*rollout.versions, strict=True) if rollout.versions else ((), ())
    if starts[:1] != (0,) or list(starts) != sorted(set(starts)) or starts[-1] >= len(rollout.token_ids):
        yield f"version: expected spans that begin with the first token and rise, found {rollout.versions}"
        return
    if not all(oldest <= version <= step for version in versions):
        yield f"version: expected {oldest} to {step}, which were sent and are not too old, found {versions}"
    (age,) = ages([sample], step)
    ends = [passport.end - 2 for passport in rollout.passports]
    yield from faults(rollout.passports, sequence, [step - int(age[end]) for end in ends])
