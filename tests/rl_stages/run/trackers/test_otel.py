"""OpenTelemetry: what a collector on this machine receives."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from cascade_rl.rl_stages.run.trackers.otel import OpenTelemetry
from tests.rl_stages.run.trackers.tracked import SECRET, subject


class Collector(BaseHTTPRequestHandler):
    received: list[bytes]

    def do_POST(self) -> None:
        self.received.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    handler = type("_Collector", (Collector,), {"received": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        yield handler.received
        server.shutdown()


def test_gauges_have_the_newest_step_and_the_stage_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, received: list[bytes]
) -> None:
    told = subject(tmp_path, monkeypatch)
    tracker = OpenTelemetry(told, None)
    tracker.log(0, {"heldout/python:mine:score": 0.25})
    for step in (1, 2):
        tracker.log(step, {"reward": step / 4})
    tracker.close(failed=False)
    (resource,) = ExportMetricsServiceRequest.FromString(received[-1]).resource_metrics
    attributes = {item.key: item.value.string_value for item in resource.resource.attributes}
    assert attributes["service.name"] == "cascade"
    assert (attributes["cascade.run"], attributes["cascade.stage"]) == ("tiny", "math_rl")
    (scope,) = resource.scope_metrics
    points = {metric.name: metric.gauge.data_points[0] for metric in scope.metrics}
    values = {name: point.as_double or point.as_int for name, point in points.items()}
    assert values == {"cascade.step": 2, "cascade.reward": 0.5, "cascade.heldout/python_mine_score": 0.25}
    assert not any(SECRET.encode() in body for body in received)
