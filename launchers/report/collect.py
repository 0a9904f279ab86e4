"""Everything that the report shows of a run except its rollouts, as plain data for the page."""

import json
import time
from collections.abc import Collection, Iterable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np

from cascade_rl.launchers.report.alerts import alerts, symptom
from cascade_rl.launchers.report.status import is_claimed, state
from cascade_rl.launchers.report.time_left import TimeLeft
from cascade_rl.rl_stages.config.base import BASE
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.stage import OnPolicyStage
from cascade_rl.rl_stages.run.durable_file import read_json
from cascade_rl.rl_stages.run.pace import duration
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder

EXPERT_COLUMNS = 120  # columns of a heat map of expert load; more steps are averaged
Events = list[dict[str, Any]]


def collect(run: RunFolder, live: Collection[str] = ()) -> dict[str, Any]:
    left = TimeLeft.of(run)
    return {
        "header": _header(run) | {"left": str(left)},
        "domains": list(run.cascade.scored_domains),
        "stages": [_stage(run, stage, live) | {"left": _shown(left, stage)} for stage in run.stages],
        "benchmarks": _benchmarks(run),
    }


def expert_load(stage: StageFolder) -> np.ndarray:
    """Tokens of each expert / mean of its layer, float32 [layers, experts, at most EXPERT_COLUMNS].

    A uniform load is 1. Empty if no step counted tokens per expert.
    """
    tokens = [event["tokens"] for event in _by_step(stage.events.rows(), "expert_tokens")]
    if not tokens:
        return np.zeros((0, 0, 0), np.float32)
    counts = np.asarray(tokens, np.float64)  # [steps, layers, experts]
    load = counts / np.maximum(counts.mean(-1, keepdims=True), 1e-9)
    parts = np.array_split(load, min(EXPERT_COLUMNS, len(load)))
    return np.stack([part.mean(0) for part in parts], -1).astype(np.float32)


def _header(run: RunFolder) -> dict[str, Any]:
    base, times = run.cascade.base, [event["time"] for stage in run.stages for event in stage.events.rows()]
    return {
        "name": run.cascade.name,
        "folder": str(run.root),
        "base": base.hf or f"{(base.hf_config or {}).get('model_type', 'model')}, random weights",
        "base_hash": run.base_hash,
        "seed": run.cascade.seed,
        "nproc": run.cascade.nproc,
        "heldout": run.cascade.evaluation.prompts_per_domain,
        "first": min(times, default=None),
        "last": max(times, default=None),
        "written": time.time(),
        "at_work": is_claimed(run.root),
        "version": version("cascade-rl"),
    }


def _stage(run: RunFolder, stage: StageFolder, live: Collection[str]) -> dict[str, Any]:
    config, events, scores = stage.config, stage.events.rows(), stage.scores()
    on_policy = config if isinstance(config, OnPolicyStage) else None
    return {
        "label": stage.label,
        "name": config.name,
        "kind": config.kind,
        "parent": stage.parent.config.name if stage.parent else BASE,
        "domain": config.domain,
        "own": sorted(on_policy.trained_domains) if on_policy else [config.domain],
        "models": [list(pair) for pair in _models(run, stage)],
        "state": state(run, stage, live),
        "step": stage.last_step(),
        "steps": config.steps,
        "ended": stage.early_stop["reason"] if stage.early_stop else None,
        "terms": config.batch_terms,
        "seconds": stage.seconds(),
        "hash": stage.content_hash,
        "band": [on_policy.importance_low, on_policy.importance_high] if on_policy else None,
        "distilled": isinstance(config, MopdStage),
        "before": scores.get("before", {}),
        "after": scores.get("after", {}),
        "allowed": dict(config.gate),
        "gate": [[v.domain, v.lost, v.allowed, v.passed] for v in stage.gate()],
        "metrics": _metrics(stage.metrics.rows()),
        "phases": _phases(events),
        "attempts": list(_attempts(events)),
        "deaths": [[event["time"], event["detail"]] for event in events if event["event"] == "engine_died"],
        "alerts": [[*alert, symptom(alert.page)] for alert in alerts(stage)],
        "warnings": [[event["step"], event["detail"]] for event in events if event["event"] == "warning"],
    }


def _benchmarks(run: RunFolder) -> dict[str, Any]:
    """The numbers after all stages and before the first; those before another are those after its parent, once more."""
    found = [numbers for stage in run.stages for _, numbers in sorted(stage.benchmarks().items(), reverse=True)]
    return {name: _distinct(row for numbers in found for row in numbers[name]) for name in ("results", "differences")}


def _distinct(rows: Iterable[dict[str, Any]]) -> Events:
    return list({json.dumps(row, sort_keys=True): row for row in rows}.values())


def _shown(left: TimeLeft, stage: StageFolder) -> str | None:
    seconds = left.stages.get(stage.config.name)
    return None if seconds is None else f"about {duration(seconds)} left"


def _models(run: RunFolder, stage: StageFolder) -> Iterator[tuple[str, str]]:
    """Yields (role, model): a domain or "judge", and a stage or folder. "best" is resolved once the stage is done."""
    chosen = _lineage(run).get(stage.config.name, {})
    exports = {str(other.export.relative_to(run.root)): other.config.name for other in run.stages}
    for key, model in stage.config.models_read.items():
        role = key.removeprefix("teachers.")
        model = chosen.get(role, model)
        yield "judge" if role == "reward_model.model" else role, exports.get(model, model)


def _lineage(run: RunFolder) -> dict[str, dict[str, str]]:
    """The teachers of each finished stage."""
    path = run.root / "lineage.json"
    stages = read_json(path)["stages"] if path.exists() else []
    return {entry["name"]: entry.get("teachers", {}) for entry in stages}


def _metrics(rows: Events) -> dict[str, list[float | None]]:
    """Each metric as a series over the rows, `step` included. A row without the metric has None."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _phases(events: Events) -> dict[str, Any]:
    steps = _by_step(events, "step")
    names = list(dict.fromkeys(name for event in steps for name in event["seconds"]))
    return {
        "names": names,
        "steps": [event["step"] for event in steps],
        "tokens": [event["tokens"] for event in steps],
        "seconds": [[event["seconds"].get(name, 0.0) for event in steps] for name in names],
    }


def _by_step(events: Events, kind: str) -> Events:
    """The events by step. If an attempt was killed and a step repeated, its last event counts."""
    last = {event["step"]: event for event in events if event["event"] == kind}
    return [last[step] for step in sorted(last)]


def _attempts(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The attempts: first step, seconds up to the last event, exit code (None if none was recorded), last words."""
    attempt: dict[str, Any] | None = None
    for event in events:
        if event["event"] == "attempt":
            if attempt:
                yield attempt
            attempt = {"time": event["time"], "from": event["from_step"], "seconds": 0.0, "code": None, "message": ""}
        elif attempt:
            attempt["seconds"] = event["time"] - attempt["time"]
            if event["event"] == "ended":
                attempt |= {"code": event["exit_code"], "message": event.get("message", "")}
    if attempt:
        yield attempt
