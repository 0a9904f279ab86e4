"""MLflow itself, with a folder as its store. `make test-trackers` runs it."""

from pathlib import Path

import pytest

from cascade_rl.rl_stages.run.trackers.mlflow import MLflow
from tests.rl_stages.run.trackers.tracked import SECRET, holds, subject, two_attempts

pytest.importorskip("mlflow", reason="make test-trackers installs it")


def test_a_run_goes_on_with_its_stage_as_a_tag_and_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'store'}")
    told = subject(tmp_path, monkeypatch)
    run_id = two_attempts(lambda known: MLflow(told, known))
    client = MlflowClient()
    found = client.get_run(str(run_id))
    assert (found.info.status, found.info.run_name) == ("FINISHED", "tiny/03_math_rl")
    assert found.data.tags["stage"] == "math_rl" and found.data.tags["run"] == "tiny"
    assert float(found.data.params["optimizer.lr"]) == told.settings["optimizer.lr"]
    rewards = [(metric.step, metric.value) for metric in client.get_metric_history(str(run_id), "reward")]
    assert rewards == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert [metric.value for metric in client.get_metric_history(str(run_id), "heldout/math")] == [0.25]
    assert holds(tmp_path / "store", "math_rl") and holds(tmp_path / "store", SECRET) == []
