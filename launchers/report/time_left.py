"""How long the stages of a run still take, at the pace of the steps that they have made."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from cascade_rl.rl_stages.run.pace import duration, pace
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder


@dataclass(frozen=True)
class TimeLeft:
    """stages   name -> seconds that its training steps still take, of the unfinished stages whose pace is known
    unknown  the unfinished stages of which, and of whose kind, no two steps have been timed

    Held-out scores, exports and starts are not in it, nor the waiting in a queue.
    """

    stages: Mapping[str, float]
    unknown: tuple[str, ...]

    @classmethod
    def of(cls, run: RunFolder) -> "TimeLeft":
        paces = [(stage.config, one) for stage in run.stages if (one := _pace(stage))]
        found, unknown = {}, []
        for stage in (stage for stage in run.stages if not stage.done):
            config, steps = stage.config, stage.config.steps - last_told_step(stage)
            own = [seconds for other, seconds in paces if other is config]
            if measured := own or [seconds for other, seconds in paces if other.kind == config.kind]:
                found[config.name] = steps * fmean(measured)
            else:
                unknown.append(config.name)
        return cls(found, tuple(unknown))

    def __str__(self) -> str:
        """Of the whole run; empty if it is done or nothing is known."""
        if not self.stages:
            return ""
        rest = f", without {', '.join(self.unknown)}" if self.unknown else ""
        return f"about {duration(sum(self.stages.values()))}{rest}"


def last_told_step(stage: StageFolder) -> int:
    """The newest step with metrics; a checkpoint may be older."""
    return max((int(row["step"]) for row in stage.metrics.rows()), default=0)


def _pace(stage: StageFolder) -> float | None:
    """Of the last attempt that has made two steps: what lies between two attempts is no training."""
    ends: list[float] = []
    attempts = [ends]
    for event in stage.events.rows():
        if event["event"] == "attempt":
            attempts.append(ends := [])
        elif event["event"] == "step":
            ends.append(event["time"])
    return next((found for times in reversed(attempts) if (found := pace(times))), None)
