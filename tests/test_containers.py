"""The recipe installs the CUDA lock, whole and nothing else, on an image that fits it. Nothing is built here."""

import re
import subprocess
from pathlib import Path

import pytest

from cascade_rl.launchers.slurm.cluster import read_cluster
from tests.test_requirements import lock, pins

ROOT = Path(__file__).parents[1]
RECIPE = (ROOT / "containers" / "Dockerfile").read_text()
LOCKED = ".venv/.locked-cuda"
FROM_TORCH = {"causal-conv1d", "mamba-ssm", "transformer-engine-torch"}  # their setup.py imports torch


def commands_of(target: str) -> list[str]:
    """What make would run."""
    how = ["make", "--dry-run", "--always-make", target, "PINS=cuda"]
    return subprocess.run(how, cwd=ROOT, text=True, capture_output=True, check=True).stdout.splitlines()


def pinned(name: str) -> str:
    (version,) = (pin.removeprefix(f"{name}==") for pin in pins(lock("cuda")) if pin.startswith(f"{name}=="))
    return version


@pytest.mark.process
def test_the_recipe_installs_the_lock_and_torch_before_what_is_compiled_against_it():
    installs = re.findall(r"(?<!/)\b(?:pip|conda|uv|curl|wget) .*|make \S+ PINS=cuda", re.sub(r"#.*", "", RECIPE))
    assert installs == [f"make {LOCKED} PINS=cuda", "make setup PINS=cuda"]
    wheels, everything = (line for line in commands_of(LOCKED) if "pip sync" in line)
    (left_out,) = (line for line in commands_of(LOCKED) if line.startswith("grep"))
    assert set(re.findall(r"-e '\^([\w-]+)=='", left_out)) == FROM_TORCH
    assert left_out.endswith("requirements/cuda.txt >.venv/not-compiled.txt")
    assert wheels.endswith(".venv/not-compiled.txt") and "--no-build-isolation" not in wheels
    assert everything.endswith("--no-build-isolation requirements/cuda.txt")
    assert [name for name in FROM_TORCH if f"{name}=" not in "\n".join(pins(lock("cuda")))] == []


@pytest.mark.process
def test_what_is_compiled_is_not_looked_for_in_the_web_and_can_import_what_builds_it():
    (compiling,) = (line for line in commands_of(LOCKED) if "--no-build-isolation" in line)
    for switch in ("CAUSAL_CONV1D_FORCE_BUILD", "MAMBA_FORCE_BUILD", "NVTE_PYTORCH_FORCE_BUILD"):
        assert f"{switch}=TRUE " in compiling
    locked = {pin.partition("==")[0] for pin in pins(lock("cuda"))}
    assert {"torch", "setuptools", "wheel", "packaging", "ninja"} <= locked


def test_the_image_has_the_cuda_and_the_python_of_the_lock():
    (cuda,) = re.findall(r"^FROM nvidia/cuda:([\d.]+)-devel-ubuntu24.04$", RECIPE, re.MULTILINE)
    assert pinned("cuda-toolkit").split(".")[:2] == cuda.split(".")[:2]
    assert "--python-version 3.12" in (ROOT / "Makefile").read_text()  # Ubuntu 24.04's


def test_the_profile_with_a_container_is_the_recipes():
    profile, page = (
        read_cluster("example_b200", ROOT / "launchers" / "x.py"),
        (ROOT / "containers" / "README.md").read_text(),
    )
    (folder,) = re.findall(r"^WORKDIR (.*)$", RECIPE, re.MULTILINE)
    assert profile.python == f"{folder}/.venv/bin/python"
    for key in ("container_image", "python"):
        assert f'{key} = "{getattr(profile, key)}"' in page
