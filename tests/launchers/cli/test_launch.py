"""The command lines: quick help, and one clear message with exit code 2 for bad input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.until import LIMIT_S

LAUNCHER = str(Path(__file__).parents[1] / "fake_launcher.py")


def run(module: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", f"cascade_rl.launchers.{module}", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.parametrize(("module", "arguments"), [("cli.launch", ()), ("cli.launch", (LAUNCHER,)), ("cli.main", ())])
def test_help_comes_at_once(tmp_path: Path, module: str, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", f"cascade_rl.launchers.{module}", *arguments, "--help"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout.startswith("usage:")
    assert len(told.stderr.splitlines()) < 500  # modules; torch alone has 1,200


def test_the_launcher_side_never_loads_what_takes_seconds(tmp_path: Path) -> None:
    modules = "cli.launch", "local.run_local", "cli.main"
    source = f"import sys; {'; '.join(f'import cascade_rl.launchers.{name}' for name in modules)}"
    slow = ("torch", "transformers", "datasets", "pytest", "nemo_run")
    told = subprocess.run(
        [sys.executable, "-c", f"{source}; print([name for name in {slow} if name in sys.modules])"],
        stdout=subprocess.PIPE,
    )
    assert told.stdout == b"[]\n"


def test_help_of_a_launcher_is_a_page_and_that_of_a_key_explains_it(tmp_path: Path) -> None:
    told = run("cli.launch", tmp_path, LAUNCHER, "--help")
    assert len(told.stdout.splitlines()) <= 60
    assert "\n  math_rl               grpo, 6 steps\n" in told.stdout
    told = run("cli.launch", tmp_path, LAUNCHER, "--help", "math_rl.optimizer.lr")
    assert told.stdout.startswith("math_rl.optimizer.lr=3e-06\nlearning rate")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["experiment"], "no such file: experiment. The first argument must be a launcher file"),
        ([sys.executable], "expected a launcher file (LAUNCHER.py), found"),
        (["missing.py"], "no such file: missing.py"),
        ([LAUNCHER, "math_rl.stepz=3"], "Unknown key 'math_rl.stepz'. Did you mean 'math_rl.steps'?"),
        ([LAUNCHER, "--help", "math_rl.stepz"], "Unknown key 'math_rl.stepz'. Did you mean 'math_rl.steps'?"),
        ([LAUNCHER, "math_rl.steps=many"], "math_rl.steps: expected a whole number, found 'many'."),
        ([LAUNCHER, "sft.data=gone.jsonl"], "sft.data: no such file: gone.jsonl"),
        ([LAUNCHER, "--clutser", "x"], "unrecognized arguments: --clutser"),
        ([LAUNCHER, "base.hf_config=null", "base.hf=gone"], "found none in 'gone'"),
    ],
)
def test_bad_input_is_one_message_and_nothing_is_written(tmp_path: Path, arguments: list[str], message: str) -> None:
    told = run("cli.launch", tmp_path, *arguments)
    assert told.returncode == 2
    assert message in told.stderr
    assert "Traceback" not in told.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\n", "expected a file that ends with launch(...)"),
        (
            "from cascade_rl.rl_stages.config.cascade import GrpoStage\nGrpoStage(stepz=1)\n",
            "GrpoStage has no key 'stepz'. Did you mean 'steps'?",
        ),
    ],
)
def test_a_wrong_launcher_file_is_told(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "wrong.py").write_text(source)
    told = run("cli.launch", tmp_path, "wrong.py")
    assert told.returncode == 2
    assert message in told.stderr
    assert "Traceback" not in told.stderr


def test_bench_step_tells_the_best_of_each_phase(tmp_path: Path) -> None:
    launched = run("cli.launch", tmp_path, LAUNCHER)
    assert launched.returncode == 0
    told = run("cli.main", tmp_path, "bench", "step", "runs/fake", "--json", "step.json")
    assert told.returncode == 0
    assert "02_math_rl: best of 6 steps" in told.stdout
    told = json.loads((tmp_path / "step.json").read_text())
    assert "cores of" in told["machine"] and "megatron-core 0.19.2" in told["machine"]
    assert told["seconds"] == {"math_rl": {"generation": 0.5, "update": 0.25, "whole step": 0.75}}


def test_bench_step_without_a_run_is_told(tmp_path: Path) -> None:
    told = run("cli.main", tmp_path, "bench", "step", "gone")
    assert told.returncode == 2
    assert "gone: expected a run folder with a cascade.yaml, found none" in told.stderr
