"""A tracker of other people's, held to two promises: a step is told once, and a tracker that fails ends no stage."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cascade_rl.rl_stages.run.durable_file import read_json, write_json
from cascade_rl.rl_stages.run.run_folder import StageFolder
from cascade_rl.rl_stages.run.trackers.tracker import Tracker

type Warn = Callable[[int, str], None]


class ToldOnce:
    """A tracker whose id and newest steps are kept in the stage's folder.

    A step is noted before it is told: an attempt that repeats it after a kill tells it no second time. Whatever the
    tracker raises becomes a warning; it is then told nothing more in this attempt, and the next one tells what it
    lacks.
    """

    def __init__(self, name: str, folder: StageFolder, make: Callable[[str | None], Tracker], warn: Warn) -> None:
        self.name, self._folder, self._warn = name, folder, warn
        self._path = folder.root / "tracked" / f"{name}.json"
        self._path.parent.mkdir(exist_ok=True)
        self._kept: dict[str, Any] = read_json(self._path) if self._path.exists() else {"id": None, "told": {}}
        self._tracker: Tracker | None = None
        self._dare(partial(self._open, make))

    def log(self, series: str, step: int, values: Mapping[str, float]) -> None:
        """Tells the values of a step, unless this step of `series` has been told."""
        if self._tracker and step > self._kept["told"].get(series, -1):
            self._kept["told"][series] = step
            write_json(self._path, self._kept)
            self._dare(partial(self._tracker.log, step, values))

    def close(self, failed: bool) -> None:
        if self._tracker:
            self._dare(partial(self._tracker.close, failed))

    def _open(self, make: Callable[[str | None], Tracker]) -> None:
        self._tracker = make(self._kept["id"])
        self._kept["id"] = self._tracker.id
        write_json(self._path, self._kept)

    def _dare(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            self._tracker = None
            self._warn(self._folder.last_step(), f"{self.name} is told nothing more in this attempt: {error}")
