"""How the GPUs of a stage are best shared between its trainer and its engines.

The search changes the numbers of ranks and engines alone. How a replica and an engine are sharded, the cache and the
batches stay the launcher's. Engines that are apart have whole nodes, unless all GPUs are on one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from cascade_rl.launchers.plan.pace import STEP, Pace, Way, pace_of
from cascade_rl.launchers.plan.stage_plan import Setting, flow, fullest_bytes, problems, seconds

NEAR = 1.02
MOST_IN_FLIGHT = 8  # steps; prime-rl's default bound


@dataclass(frozen=True)
class Split:
    """The GPUs of a stage, shared in one way.

    way           in turn on the same ones; apart, and engines draw ahead; apart, and new weights arrive in flight
    trainer, engines   GPUs of each; the same ones if in turn
    staleness     weight versions by which a sample may be older: the least with which a step is as short as it gets
    step          seconds
    trainer_busy, engines_busy   shares of the step; of engines, that which full batches would take
    settings      key=value of the launcher's command line that make it of the stage's layout
    """

    way: Way
    trainer: int
    engines: int
    staleness: int
    step: float
    trainer_busy: float
    engines_busy: float
    settings: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        return self.trainer if self.way == "in turn" else self.trainer + self.engines


def splits(setting: Setting) -> tuple[Split, ...]:
    """The fastest split in each way that fits; a way without one is left out. None for a stage that does not sample."""
    if not setting.samples or not setting.has_engines:
        return ()
    candidates = {"in turn": list(_shared(setting)), "ahead": list(_apart(setting))}
    candidates["in flight"] = candidates["ahead"]
    found = (_fastest(way, candidates[way]) for way in STEP)
    return tuple(replace(split, settings=tuple(_settings(setting, split))) for split in found if split)


def _settings(setting: Setting, split: Split) -> Iterator[str]:
    rollout, apart = setting.layout.rollout, split.way != "in turn"
    wanted = {
        "engines": split.engines // rollout.tensor,
        "placement": "disaggregated" if apart else "colocated",
        "max_staleness": split.staleness,
        "sleep": not apart,
        "deterministic": rollout.deterministic and split.way != "in flight",
    }
    if split.trainer != setting.layout.nproc:
        yield f"{setting.stage.name}.nproc={split.trainer}"
    for key, value in wanted.items():
        if value != getattr(rollout, key):
            yield f"{setting.stage.name}.rollout.{key}={str(value).lower()}"


def _fastest(way: Way, candidates: list[Setting]) -> Split | None:
    made = sorted(((_split(way, setting), setting) for setting in candidates), key=lambda pair: pair[0].step)
    return next((split for split, setting in made if _fits(setting)), None)


def _fits(setting: Setting) -> bool:
    return not any(problems(setting)) and fullest_bytes(setting) <= setting.gpu.capacity


def _split(way: Way, setting: Setting) -> Split:
    staleness = _staleness(setting) if way == "in flight" else int(way == "ahead")
    pace, layout = pace_with(setting, staleness), setting.layout
    step = STEP[way](pace)
    return Split(
        way=way,
        trainer=layout.nproc,
        engines=layout.rollout.engines * layout.rollout.tensor,
        staleness=staleness,
        step=step,
        trainer_busy=pace.learn / step,
        engines_busy=min(flow(setting, MOST_IN_FLIGHT) / step, 1.0),
    )


def pace_with(setting: Setting, staleness: int) -> Pace:
    """Of one step."""
    return pace_of(seconds(setting), flow(setting, staleness) if staleness else 0.0)


def _staleness(setting: Setting) -> int:
    """The least with which weights are in flight and a step is within NEAR of the fastest."""
    steps = [pace_with(setting, staleness).in_flight for staleness in range(2, MOST_IN_FLIGHT + 1)]
    return 2 + next(i for i, step in enumerate(steps) if step <= NEAR * steps[-1])


def _shared(setting: Setting) -> Iterator[Setting]:
    """All GPUs for both. Engines that have their own, and cannot sleep, would sleep here."""
    gpus, rollout = setting.gpus, setting.layout.rollout
    if not setting.apart:
        yield setting
    elif gpus % _replica(setting) == 0 and gpus % rollout.tensor == 0:
        rollout = replace(rollout, placement="colocated", max_staleness=0, sleep=True, engines=gpus // rollout.tensor)
        yield replace(setting, layout=replace(setting.layout, nproc=gpus, rollout=rollout))


def _apart(setting: Setting) -> Iterator[Setting]:
    """Each number of trainer ranks that makes whole replicas, with engines on the other GPUs."""
    gpus, rollout, per_node = setting.gpus, setting.layout.rollout, setting.gpu.gpus_per_node
    own = replace(rollout, placement="disaggregated", sleep=False)
    whole = per_node if gpus > per_node else 1
    for nproc in range(math.lcm(_replica(setting), whole), gpus, math.lcm(_replica(setting), whole)):
        if (gpus - nproc) % math.lcm(rollout.tensor, whole) == 0:
            some = replace(own, engines=(gpus - nproc) // rollout.tensor)
            yield replace(setting, layout=replace(setting.layout, nproc=nproc, rollout=some))


def _replica(setting: Setting) -> int:
    """The least number of ranks that hold a model."""
    cut = setting.layout.parallel
    dense, experts = cut.tensor * cut.context, cut.expert * cut.expert_tensor
    return math.lcm(dense, experts) * cut.pipeline
