"""The trackers that `report_to` may name, and what each needs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from cascade_rl.engine.core.extras import require_extra
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.run.run_folder import StageFolder
from cascade_rl.rl_stages.run.trackers.mlflow import MLflow
from cascade_rl.rl_stages.run.trackers.otel import OpenTelemetry
from cascade_rl.rl_stages.run.trackers.told_once import ToldOnce, Warn
from cascade_rl.rl_stages.run.trackers.tracker import Subject, Tracker
from cascade_rl.rl_stages.run.trackers.wandb import WeightsAndBiases


class Known(NamedTuple):
    """What opens a tracker, for a stage and the id of an earlier attempt, and the module that it imports."""

    open: Callable[[Subject, str | None], Tracker]
    module: str


TRACKERS: Mapping[str, Known] = {
    "wandb": Known(WeightsAndBiases, "wandb"),
    "mlflow": Known(MLflow, "mlflow"),
    "otel": Known(OpenTelemetry, "opentelemetry.exporter.otlp.proto.http"),
}


def require_trackers(cascade: Cascade) -> None:
    """Raises UserError for a tracker that is named and not installed."""
    for name in cascade.report_to:
        require_extra(TRACKERS[name].module, "report_to", name, f"leave {name} out of report_to")


def trackers(cascade: Cascade, folder: StageFolder, warn: Warn) -> list[ToldOnce]:
    """Those that `report_to` names, opened for an attempt at the stage."""
    subject = Subject.of(cascade, folder)
    return [ToldOnce(name, folder, partial(TRACKERS[name].open, subject), warn) for name in cascade.report_to]
