"""MLflow: a run per stage. Its own variables apply: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME (cascade).

The client is used without MLflow's global run, which would add the user, the command line and the commit.
"""

import os
import time
from collections.abc import Mapping

from cascade_rl.rl_stages.run.trackers.tracker import Subject

PARAMETERS_AT_ONCE = 100  # the most that a server takes


class MLflow:
    """A tracker."""

    def __init__(self, subject: Subject, known: str | None) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        self.id = known or self._create(subject)
        self._client.update_run(self.id, status="RUNNING")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self.id, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def close(self, failed: bool) -> None:
        self._client.set_terminated(self.id, "FAILED" if failed else "FINISHED")

    def _create(self, subject: Subject) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "cascade")
        experiment = self._client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self._client.create_experiment(name)
        tags = {"run": subject.run, "stage": subject.stage, "kind": subject.kind, "hash": subject.hash}
        created = str(self._client.create_run(place, run_name=subject.title, tags=tags).info.run_id)
        parameters = [Param(key, str(value)) for key, value in subject.settings.items()]
        for first in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(created, params=parameters[first : first + PARAMETERS_AT_ONCE])
        return created
