"""Weights & Biases itself, offline: what its file on disk says. `make test-trackers` runs it."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.rl_stages.run.trackers.wandb import WeightsAndBiases
from tests.rl_stages.run.trackers.tracked import SECRET, holds, subject, two_attempts

pytest.importorskip("wandb", reason="make test-trackers installs it")
pytestmark = pytest.mark.process
BLOCK, HEADER, FIRST = 1 << 15, 7, 7  # bytes: of a block, of a chunk's header, of the file's own header


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file, which is a LevelDB log: chunks with a checksum, a length and a type (1: whole)."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at = path.read_bytes(), FIRST
    while at + HEADER < len(content):
        length, kind = struct.unpack("<HB", content[at + 4 : at + HEADER])
        if at % BLOCK > BLOCK - HEADER or kind == 0:
            at += BLOCK - at % BLOCK
            continue
        assert kind == 1, "a record in several blocks: tell fewer steps"
        yield Record.FromString(content[at + HEADER : at + HEADER + length])
        at += HEADER + length


def history(found: list[Any]) -> list[dict[str, float]]:
    rows = [record.history for record in found if record.WhichOneof("record_type") == "history"]
    items = [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in row.item} for row in rows]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in items]


def test_an_offline_run_goes_on_in_its_group_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    told = subject(tmp_path, monkeypatch)
    run_id = two_attempts(lambda known: WeightsAndBiases(told, known))
    first, again = (list(records(path)) for path in sorted(told.logs.rglob("*.wandb")))
    (run,) = [record.run for record in first if record.WhichOneof("record_type") == "run"]
    assert (run.run_id, run.run_group, run.display_name) == (run_id, "math_rl", "tiny/03_math_rl")
    assert (run.project, run.job_type, list(run.tags)) == ("cascade", "grpo", ["tiny"])
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["optimizer.lr"] == told.settings["optimizer.lr"] and config["hash"] == told.hash
    assert history(first)[1:] == [{"step": 1, "reward": 0.25}, {"step": 2, "reward": 0.5}]
    assert history(again) == [{"step": 3, "reward": 0.75}]
    assert holds(told.logs, "optimizer.lr") and holds(told.logs, SECRET) == []
