"""What makes a node unfit, each by its own message."""

import dataclasses
from pathlib import Path

import pytest

from cascade_rl.launchers.stage.node_probe import MIN_FREE, NodeState, observe

GPU = {
    "index": "0",
    "name": "H100",
    "total_mib": "81559",
    "free_mib": "81079",
    "clock_mhz": "1980",
    "max_clock_mhz": "1980",
    "slowed": "Not Active",
    "hot": "Not Active",
}
FIT = NodeState(node="node1", free=dict(MIN_FREE), head=("10.0.0.1",), gpus=(GPU, {**GPU, "index": "1"}))


def test_a_fit_node_has_no_problem() -> None:
    assert list(FIT.problems(cards=2, nodes=4)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": (GPU,)}, "expected 2 visible GPUs, found 1"),
        ({"gpus": (GPU, {**GPU, "free_mib": "1000"})}, "GPU 0: expected free memory, found 80559 of 81559 MiB"),
        ({"gpus": (GPU, {**GPU, "hot": "Active", "clock_mhz": "345"})}, "GPU 0: expected full clocks, found 345 MHz"),
        ({"head": ()}, "expected the first node's name to resolve here"),
        ({"head": ("127.0.1.1",)}, "expected an address of the first node that others reach, found loopback 127.0.1.1"),
        ({"free": {**MIN_FREE, "shared_memory": 64 * 2**20}}, "0.5 GiB or more free in shared memory, found 0.1"),
    ],
)
def test_each_problem_is_named(change: dict, message: str) -> None:
    (problem,) = dataclasses.replace(FIT, **change).problems(cards=2, nodes=2)
    assert message in problem


def test_one_node_may_meet_itself_by_loopback() -> None:
    assert list(dataclasses.replace(FIT, head=("127.0.0.1",)).problems(cards=2, nodes=1)) == []


@pytest.mark.process
def test_gpus_are_read_as_nvidia_smi_tells_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = tmp_path / "nvidia-smi"
    line = "NVIDIA H100 80GB HBM3, 81559, 81079, 1980, 1980, Not Active, Not Active"
    stub.write_text(f"#!/bin/sh\necho '0, {line}'\necho '1, {line}'\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    state = observe(tmp_path, "localhost", gpus=True)
    assert state.gpus is not None and [gpu["index"] for gpu in state.gpus] == ["1"]
    assert state.gpus[0]["free_mib"] == "81079"
    assert list(state.problems(cards=1, nodes=1)) == []
    stub.write_text("#!/bin/sh\necho 'Unable to determine the device handle'\nexit 15\n")
    (problem,) = observe(tmp_path, "localhost", gpus=True).problems(cards=1, nodes=1)
    assert problem == "nvidia-smi: Unable to determine the device handle"
