import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from cascade_rl.kernels import bench, gate
from cascade_rl.kernels.bench import heads, limits, machine, problems
from cascade_rl.kernels.bench.limits import Limits
from cascade_rl.kernels.bench.machine import Machine
from cascade_rl.kernels.bench.measure import measured, rows_of
from cascade_rl.kernels.bench.problems import Problem, Shape
from cascade_rl.kernels.bench.table import Report, Row
from cascade_rl.kernels.runtime.interpreter import interpreted
from tests.kernels.peers import PEERS, missing, peers_interpreted
from tests.until import LIMIT_S

SMALL = Shape(16, 128, 200)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CPU_SHAPES", [SMALL])
    monkeypatch.setattr(machine, "MIN_REPEATS", 1)
    monkeypatch.setattr(machine, "MAX_REPEATS", 1)
    monkeypatch.setattr(problems, "RERUNS", 2)
    monkeypatch.setattr(limits, "PHASE_SECONDS", 600.0)  # the interpreter is slow, and the machine is shared
    monkeypatch.setattr(limits, "TOTAL_SECONDS", 600.0)
    monkeypatch.setattr(gate, "check", list)


def cpu() -> Machine:
    return Machine("a CPU", torch.device("cpu"))


def no_limits() -> Limits:
    return Limits(lambda reason: None)


def by_name(rows: list[dict]) -> dict[tuple[str, str], dict]:
    return {(row["op"], row["provider"]): row for row in rows}


def test_on_a_cpu_it_says_so_and_times_the_torch_path(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert bench.run(tmp_path / "bench.json") == 0
    assert "No GPU" in capsys.readouterr().out
    answer = json.loads((tmp_path / "bench.json").read_text())
    assert answer["device"].startswith("CPU")
    timed = by_name(answer["rows"])
    for op in ("logprob", "reverse KL"):
        assert timed[op, "ours"]["both_ms"] > 0
        assert timed[op, "ours"]["error"] < 5e-6
        assert timed[op, "ours"]["gradient_error"] < 3e-3
    assert timed["logprob", "torch eager"]["error"] > 1e-3  # bfloat16 logits
    assert timed["logprob", "torch float32"]["error"] < 5e-6
    assert timed["logprob", "ours, rerun"]["note"] == "2 of 2 reruns bitwise equal; a part of the batch equal"


class FakeGpu(SimpleNamespace):
    """The parts of torch.cuda that the benchmark uses: synchronisation and memory."""

    def __init__(self) -> None:
        super().__init__(synchronized=0, emptied=0)

    def synchronize(self) -> None:
        self.synchronized += 1

    def empty_cache(self) -> None:
        self.emptied += 1

    def mem_get_info(self) -> tuple[int, int]:
        return 2048, 4096

    def reset_peak_memory_stats(self) -> None: ...

    def memory_allocated(self) -> int:
        return 1 << 20

    def max_memory_allocated(self) -> int:
        return 3 << 20


@pytest.mark.slow
def test_what_a_gpu_runs(tmp_path: Path):
    """The GPU path except its shapes and clock: our Triton kernels, peers, poison, peak memory, table and file."""
    report, gpu = Report("a GPU", tmp_path / "bench.json"), FakeGpu()
    with interpreted(), peers_interpreted():
        bench.benchmark(Machine("a GPU", torch.device("cpu"), gpu), [SMALL], report)
    assert report.finish() == 0
    timed = by_name(json.loads((tmp_path / "bench.json").read_text())["rows"])
    expected = {"ours": 5e-6, "torch eager": 0.1, "torch.compile": 0.1} | dict.fromkeys(set(PEERS) - missing(), 0.1)
    for provider, bound in expected.items():
        row = timed["logprob", provider]
        assert row["note"] == ""
        assert row["error"] < bound and row["gradient_error"] < 0.02
        assert row["peak_mb"] == 2
        unit_ms = timed["logprob", "one matrix product"]["forward_ms"]
        assert row["forward_share"] == pytest.approx(unit_ms / row["forward_ms"])
        assert row["both_share"] == pytest.approx(3 * unit_ms / row["both_ms"])
    for provider in missing():
        assert timed["logprob", provider]["note"].startswith("ModuleNotFoundError: No module named")
    for provider in ("ours", "chunked torch"):
        assert timed["reverse KL", provider]["both_ms"] > 0
    assert timed["reverse KL", "one matrix product"]["note"].endswith("TFLOP/s")
    assert gpu.emptied >= len(report.rows) - 3  # before each provider
    assert gpu.synchronized > 0


def test_poison_is_nan_in_every_dtype(monkeypatch: pytest.MonkeyPatch):
    seen: list[Tensor] = []
    full = torch.full
    monkeypatch.setattr(torch, "full", lambda *args, **kwargs: seen.append(full(*args, **kwargs)))
    Machine("a GPU", torch.device("cpu"), FakeGpu()).poison()
    assert len(seen[0]) == 1024
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        assert seen[0].view(dtype).isnan().all()


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_computes_what_its_adapter_says(peer: str):
    if peer in missing():
        pytest.skip(f"{peer} is not installed here; `make test-triton36` has it")
    problem = problems.logprob(SMALL, cpu())
    hidden, weight, targets = problem.providers["ours"].args
    providers = {peer: lambda: heads.heads(on_gpu=True)[peer](hidden, weight, targets)}
    with peers_interpreted():
        found = Problem(**vars(problem) | {"providers": providers}).errors(peer)
    assert found.value < 0.1
    assert found.gradient < 0.02


def test_the_exact_gradients_are_those_of_one_float64_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(problems, "SAMPLED_ROWS", 5)
    problem = problems.logprob(SMALL, cpu())
    hidden, weight, targets = problem.providers["ours"].args
    leaves = [hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()]
    values = torch.log_softmax(leaves[0] @ leaves[1].T, 1).gather(1, targets[:, None])[:, 0]
    grad_hidden, grad_weight = torch.autograd.grad(values, leaves, problem.coefficients.double())
    assert torch.allclose(problem.exact.values, values[:5], rtol=1e-12)
    assert torch.allclose(problem.exact.gradients[0], grad_hidden[:5], rtol=1e-9, atol=1e-12)
    assert torch.allclose(problem.exact.gradients[1], grad_weight, rtol=1e-9, atol=1e-12)
    monkeypatch.setattr(problems, "EXACT_WEIGHT_TOKENS", 8)
    assert len(problems.logprob(SMALL, cpu()).exact.gradients) == 1


def with_provider(provider: object) -> Problem:
    problem = problems.logprob(SMALL, cpu())
    return Problem(**vars(problem) | {"providers": {"ours": provider}, "reruns": None})


def test_a_wrong_value_or_gradient_has_no_time_and_fails_the_run(capsys: pytest.CaptureFixture):
    right = problems.logprob(SMALL, cpu()).providers["torch float32"]
    hidden, weight, _ = right.args
    for wrong in (lambda: right() + 0.01, lambda: right() + 0.1 * (weight.sum() - weight.sum().detach())):
        problem = with_provider(wrong)
        problem = Problem(**vars(problem) | {"leaves": [hidden, weight]})
        row = measured(problem, "ours", 1.0, cpu(), no_limits())
        assert row.note.startswith("wrong: above 0.0001")
        assert row.forward_ms is None
        assert Report("a CPU", rows=[row]).finish() == 1


def test_a_provider_that_fails_is_a_row():
    def absent() -> Tensor:
        import a_kernel_that_is_not_installed

        return a_kernel_that_is_not_installed.run()

    row = measured(with_provider(absent), "ours", 1.0, cpu(), no_limits())
    assert row.note.startswith("ModuleNotFoundError: No module named 'a_kernel")


def test_an_op_that_cannot_be_set_up_is_a_row_and_fails_the_run(monkeypatch: pytest.MonkeyPatch):
    def divergence(shape: Shape, machine: Machine) -> Problem:
        raise torch.OutOfMemoryError("no 5 GB")

    monkeypatch.setattr(bench, "divergence", divergence)
    report = Report("a CPU")
    bench.benchmark(cpu(), [SMALL], report)
    assert report.rows[-1] == Row("divergence", "all", str(SMALL), note="OutOfMemoryError: no 5 GB")
    assert report.finish() == 1


def test_a_slow_provider_is_stopped_and_not_asked_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "PHASE_SECONDS", 0.3)
    problem, too_slow = with_provider(lambda: time.sleep(6000)), set()
    assert [row.note for row in rows_of(problem, cpu(), no_limits(), too_slow)][1:] == ["TimeoutError: over 0.3 s"]
    assert [row.note for row in rows_of(problem, cpu(), no_limits(), too_slow)][1:] == ["too slow at a smaller shape"]


def test_when_the_time_is_over_the_rest_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "TOTAL_SECONDS", -1.0)
    report = Report("a CPU")
    bench.benchmark(cpu(), [SMALL], report)
    assert [row.note for row in report.rows] == ["no time left"] * 2
    assert report.finish() == 1


def test_a_provider_that_hangs_in_c_ends_the_run_with_the_table(tmp_path: Path):
    program = textwrap.dedent("""
        import signal, sys, time
        from pathlib import Path
        from cascade_rl.kernels.bench import limits
        from cascade_rl.kernels.bench.table import Report, Row
        limits.PHASE_SECONDS, limits.GRACE_SECONDS = 0.2, 0.3
        report = Report("a CPU", Path(sys.argv[1]))
        report.rows.append(Row("logprob", "ours", "16 x 128 x 200", 1.25))
        with limits.Limits(report.give_up).phase("logprob: verl"):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # as deaf as a wait for a kernel
            time.sleep(6000)
    """)
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "bench.json"], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 1
    assert done.stdout.splitlines()[-2:] == [
        "logprob              16 x 128 x 200         ours                       1.25" + 66 * " " + "  ",
        "stopped: logprob: verl hung for 0.5 s",
    ]
    assert json.loads((tmp_path / "bench.json").read_text())["stopped"].startswith("logprob: verl hung")


def test_a_complaint_of_the_gate_fails_the_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate, "check", lambda: ["sm90 tile_statistics: 444 bytes of spills"])
    assert bench.run(None) == 1
