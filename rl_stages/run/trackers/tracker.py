"""What an experiment tracker must do, and what it is told of a stage."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.text import leaves, to_plain
from cascade_rl.rl_stages.run.run_folder import StageFolder


class Tracker(Protocol):
    """One tracked run, which is a stage. A later attempt at the stage opens it again by its `id`."""

    @property
    def id(self) -> str | None: ...

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self, failed: bool) -> None: ...


@dataclass(frozen=True)
class Subject:
    """A stage, as trackers know it.

    run       name of the cascade
    stage     name of the stage: the group that it shares with the same stage of other cascades
    title     of the tracked run
    settings  those that are numbers or switches. No text is told, because it may be an address with a password, a path
              or the name of a secret
    """

    run: str
    stage: str
    title: str
    kind: str
    hash: str
    settings: Mapping[str, float]
    logs: Path

    @classmethod
    def of(cls, cascade: Cascade, folder: StageFolder) -> Self:
        stage = folder.config
        given = leaves({"seed": cascade.seed} | to_plain(stage) | to_plain(cascade.layout(stage)))
        settings = {key: value for key, value in given.items() if isinstance(value, (int, float))}
        title = f"{cascade.name}/{folder.label}"
        return cls(cascade.name, stage.name, title, stage.kind, folder.content_hash, settings, folder.logs)
