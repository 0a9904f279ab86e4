"""Profiles: what is read, and what a wrong one is told."""

import subprocess
import sys
from pathlib import Path

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.slurm.cluster import Cluster, read_cluster

LAUNCHERS = Path(__file__).parents[3] / "launchers"
RIGHT = 'partition = "batch"\ngpus_per_node = 8\n'


def read(folder: Path, text: str, name: str = "mine") -> Cluster:
    (folder / "clusters.toml").write_text(text)
    return read_cluster(name, folder / "launcher.py")


def test_a_profile_is_read_with_its_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = f'[mine]\n{RIGHT}mounts = ["/a:/a"]\nenv = {{ NCCL_DEBUG = "WARN" }}\nsetup = ["ulimit -c 0"]\n'
    cluster = read(tmp_path, text)
    assert cluster.mounts == ("/a:/a",)
    assert cluster.setup == ("ulimit -c 0",)
    assert dict(cluster.env) == {"NCCL_DEBUG": "WARN"}
    assert cluster.gpus_per_node == 8


def test_the_profiles_that_come_with_it_are_right_and_found_from_everywhere(tmp_path: Path) -> None:
    names = "example", "example_b200", "ci"
    assert [read_cluster(name, tmp_path / "x.py").partition for name in names] == ["batch"] * 3


def test_the_current_folder_goes_before_the_launchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusters.toml").write_text('[ci]\npartition = "own"\ngpus_per_node = 1\n')
    assert read_cluster("ci", LAUNCHERS / "x.py").partition == "own"
    assert read_cluster("example", LAUNCHERS / "x.py").partition == "batch"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"[mime]\n{RIGHT}", "has a profile 'mine'. Did you mean 'mime'?"),
        (f"[mine]\n{RIGHT}acount = 'x'\n", r"Unknown key 'mine.acount'. Did you mean 'mine.account'?"),
        ("[mine]\ngpus_per_node = 8\n", "key 'partition' is missing"),
        ('[mine]\npartition = "batch"\ngpus_per_node = "8"\n', "gpus_per_node: expected a whole number, found '8'"),
        (f"[mine]\n{RIGHT}time = '4h'\n", "time: expected [DAYS-]HH:MM:SS, found '4h'"),
        (f"[mine]\n{RIGHT}time = '00:06:00'\n", "time: expected at least 120 s more than signal = USR1@300"),
        (f"[mine]\n{RIGHT}signal = 'TERM@60'\n", "signal: expected USR1@SECONDS"),
        (f"[mine]\n{RIGHT}env = {{ HF_TOKEN = 'x' }}\n", "env.HF_TOKEN: expected no secret"),
        (f"[mine]\n{RIGHT}env = {{ nccl = 'x' }}\n", "env.nccl: expected a name of capitals"),
        ("[mine\n", "expected valid TOML"),
    ],
)
def test_a_wrong_profile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as told:
        read(tmp_path, text)
    assert message in str(told.value)


def test_a_launch_loads_neither_torch_nor_nemo_run_before_it_submits() -> None:
    modules = "cascade_rl.launchers.slurm.submit, cascade_rl.launchers.slurm.dryrun, cascade_rl.launchers.stage.in_job"
    source = f"import sys, {modules}; print([name for name in ('torch', 'nemo_run') if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


@pytest.mark.parametrize("flags", [["--detach"], ["--dryrun", "out"]])
def test_flags_of_a_cluster_need_one(tmp_path: Path, flags: list[str]) -> None:
    command = [Path(sys.executable).with_name("nemo-run"), LAUNCHERS / "cascade2_tiny.py", *flags]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "expected --cluster NAME with --dryrun or --detach" in told.stderr
