import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cascade_rl.kernels import bench, gate

SMALL = bench.Shape(16, 16, 300)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CPU_SHAPES", [SMALL])
    monkeypatch.setattr(bench, "MAX_REPEATS", 3)
    monkeypatch.setattr(gate, "check", list)


def test_on_a_cpu_it_says_so_and_times_the_torch_path(small: None, tmp_path: Path, capsys: pytest.CaptureFixture):
    assert bench.run(tmp_path / "bench.json") == 0
    assert "No GPU" in capsys.readouterr().out
    answer = json.loads((tmp_path / "bench.json").read_text())
    assert answer["device"].startswith("CPU")
    timed = {(row["op"], row["provider"]): row for row in answer["rows"]}
    for op in ("logprob", "logprob_from_logits", "reverse KL"):
        assert timed[op, "ours"]["both_ms"] > 0
        assert timed[op, "ours"]["error"] < 2e-5
    assert timed["logprob", "torch eager"]["error"] > 1e-4  # bfloat16 logits
    assert timed["logprob", "ours, rerun"]["note"].startswith("20 of 20 reruns bitwise equal")


def test_a_wrong_provider_has_no_time_and_fails_the_run(small: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench, "ours", lambda head: bench.eager(head) + 1)
    row = next(bench.linear_rows(SMALL, torch.device("cpu")))
    assert row.note == "wrong: error above 2e-05"
    assert row.forward_ms is None
    assert bench.run(None) == 1


def test_a_provider_that_fails_is_a_row(small: None):
    def absent(head: bench.Head) -> Tensor:
        import a_kernel_that_is_not_installed

        return a_kernel_that_is_not_installed.run(head)

    head = bench.Head.random(SMALL, torch.device("cpu"))
    row = bench.measured("logprob", "absent", SMALL, lambda: absent(head), [head.hidden], head.logprob_of_sample(), 1)
    assert row.note.startswith("ModuleNotFoundError: No module named 'a_kernel")


def test_a_complaint_of_the_gate_fails_the_run(small: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate, "check", lambda: ["sm90 tile_statistics: 444 bytes of spills"])
    assert bench.run(None) == 1
