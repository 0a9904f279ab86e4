"""OpenTelemetry: each metric as a gauge `cascade.NAME`, sent by OTLP over HTTP.

Its own variables apply: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS, OTEL_METRIC_EXPORT_INTERVAL. A gauge
has the value of the newest step, whose number is `cascade.step`; steps that are shorter than the interval are skipped.
"""

import re
from collections.abc import Mapping

from cascade_rl.rl_stages.run.trackers.tracker import Subject

NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_./-]")


class OpenTelemetry:
    """A tracker. Steps are sent by a thread, so a collector that does not answer delays no step."""

    id = None

    def __init__(self, subject: Subject, known: str | None) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        told = {"run": subject.run, "stage": subject.stage, "kind": subject.kind, "hash": subject.hash}
        resource = Resource.create({"service.name": "cascade", **{f"cascade.{key}": told[key] for key in told}})
        self._provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource)
        self._meter = self._provider.get_meter("cascade")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in {"step": step, **values}.items():
            self._meter.create_gauge(f"cascade.{NOT_IN_A_NAME.sub('_', name)}").set(value)

    def close(self, failed: bool) -> None:
        self._provider.shutdown()
