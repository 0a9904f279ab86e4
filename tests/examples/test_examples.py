"""Every folder of `examples/` runs as its README says, smaller: what is shown there and not run is broken."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

import pyarrow.parquet as pq
import pytest

from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.tasks.demonstration import read_demonstrations
from tests.rl_stages.launched import Launched

EXAMPLES = Path(__file__).parents[2] / "examples"
LETTERS, SHELVES = "python-domain:letters:LETTERS", "python-domain:shelves:SHELVES"


@dataclass(frozen=True)
class Example:
    """`settings` by stage make it smaller; `check` gets the folders of its stages."""

    name: str
    settings: dict[str, str]
    check: Callable[..., None]

    def __str__(self) -> str:
        return self.name


def column(stage: StageFolder, name: str) -> list[float]:
    return [row[name] for row in stage.metrics.rows() if name in row]


def samples(stage: StageFolder) -> list[dict]:
    return [row for file in sorted((stage.root / "rollouts").iterdir()) for row in pq.read_table(file).to_pylist()]


def fine_tuning_has_a_validation_loss(stage: StageFolder) -> None:
    """Before the first step, when it is due and at the end; no engine starts for it. Of the rows that the first step
    learns from it is the loss of that step, which is that before the update."""
    assert [row["step"] for row in stage.metrics.rows() if "validation_loss" in row] == [0, 2, 3]
    assert column(stage, "validation_loss")[-1] < column(stage, "validation_loss")[0]
    assert column(stage, "validation_loss")[0] == pytest.approx(column(stage, "loss")[0], rel=1e-6)
    assert len(list(read_demonstrations(str(EXAMPLES / "sft/rows.jsonl")))) == 128
    assert stage.scores() == {"before": {}, "after": {}}
    assert not (stage.logs / "engine.log").exists()


def the_best_answers_are_learned(stage: StageFolder) -> None:
    """By the own loop, with the own key, of the own domain, as its verifier scores them."""
    assert (stage.config.kind, stage.config.least) == ("python:best_of:BestOfStage", 0.0)  # type: ignore[attr-defined]
    assert stage.scores()["after"].keys() == {LETTERS}
    kept = samples(stage)
    assert [row["domain"] for row in kept] == [LETTERS] * 2 * 2
    assert column(stage, "learned_answers") == [2, 2]
    for row in kept:
        assert row["reward"] in {row["text"].count(letter) / len(row["text"]) for letter in ascii_lowercase}


def own_rows_are_held_out(stage: StageFolder) -> None:
    """The held-out ones are scored and never drawn; of the others each may be drawn."""
    rows = [json.loads(line)["prompt"] for line in (EXAMPLES / "own_reward/rows.jsonl").read_text().splitlines()]
    assert stage.scores()["after"].keys() == {"python:reward:short_and_right"}
    drawn = {row["task_id"] for row in samples(stage)}
    assert drawn and all(name.startswith("rows-") and int(name.rpartition("-")[2]) < len(rows) for name in drawn)


def pairs_are_told_apart(stage: StageFolder) -> None:
    assert stage.scores()["after"].keys() == {"politeness"}
    assert (stage.export / "config.json").exists()
    assert len(column(stage, "accuracy")) == 2


def the_student_comes_nearer(teacher: StageFolder, student: StageFolder) -> None:
    assert teacher.done
    assert len(column(student, "reverse_kl")) == 2
    assert student.parent is None


def the_student_learns_from_a_bigger_teacher(student: StageFolder) -> None:
    reverse_kl = column(student, "reverse_kl")
    assert reverse_kl[-1] < 0.9 * reverse_kl[0]  # .82 of it after 12 steps
    assert student.scores()["after"].keys() == {"python:right:right"}


def episodes_have_turns(sft: StageFolder, rl: StageFolder) -> None:
    assert sft.done
    assert {row["domain"] for row in samples(rl)} == {SHELVES}
    assert all(row["reward"] is not None for row in samples(rl))


def the_export_has_the_template(stage: StageFolder) -> None:
    assert (stage.export / "chat_template.jinja").read_text() == (EXAMPLES / "chat_template/mine.jinja").read_text()


def it_learned(stage: StageFolder) -> None:
    assert len(column(stage, "loss")) == 2


RL = "steps=2 prompts_per_step=2 rollouts_per_prompt=2 checkpoint_every=2"
SFT = "steps=2 sequences_per_step=4 checkpoint_every=2"
NOW = [
    Example(
        "sft",
        {"sft": f"steps=3 sequences_per_step=16 validate_every=2 data={EXAMPLES / 'sft/validation.jsonl'}"},
        fine_tuning_has_a_validation_loss,
    ),
    Example("own_parts", {"best_of": RL, "evaluation": "prompts_per_domain=2"}, the_best_answers_are_learned),
]
LONG = [
    Example("own_reward", {"rl": RL, "evaluation": "prompts_per_domain=2"}, own_rows_are_held_out),
    Example("reward_model", {"politeness": "steps=2 pairs_per_step=4 checkpoint_every=2"}, pairs_are_told_apart),
    Example(
        "distillation",
        {"teacher": SFT, "student": "steps=2 prompts_per_step=2", "evaluation": "prompts_per_domain=2"},
        the_student_comes_nearer,
    ),
    Example("bigger_teacher", {"student": "steps=12"}, the_student_learns_from_a_bigger_teacher),
    Example("tools", {"sft": SFT, "rl": RL, "evaluation": "prompts_per_domain=2"}, episodes_have_turns),
    Example("chat_template", {"sft": SFT}, the_export_has_the_template),
    Example("data_forms", {"sft": f"{SFT} data=saved"}, it_learned),
]


@pytest.mark.parametrize("example", [*NOW, *(pytest.param(each, marks=pytest.mark.long) for each in LONG)], ids=str)
def test_an_example_runs(example: Example, tmp_path: Path) -> None:
    folder = EXAMPLES / example.name
    if (prepare := folder / "prepare.py").exists():
        subprocess.run([sys.executable, prepare, "saved"], cwd=tmp_path, check=True, capture_output=True)
    if (teacher := folder / "teacher.py").exists():
        code, _, err = Launched(tmp_path, teacher, "sft.steps=30").finish()
        assert code == 0, err
    settings = [f"{key}.{setting}" for key, many in example.settings.items() for setting in many.split()]
    code, _, err = Launched(tmp_path, folder / "launcher.py", *settings).finish()
    assert code == 0, err
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        example.check(*RunFolder.open(tmp_path / "runs" / example.name).stages)


@pytest.mark.long
@pytest.mark.process
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    script = EXAMPLES / "notebook/train_and_plot.py"
    assert script.read_text().count("# %%") == 10
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "validation loss" in done.stdout
    assert "<svg" in (tmp_path / "loss.svg").read_text()


def test_every_folder_is_run() -> None:
    folders = {path.parent.name for path in EXAMPLES.glob("*/README.md")}
    assert {example.name for example in (*NOW, *LONG)} | {"notebook"} == folders
    index = (EXAMPLES / "README.md").read_text()
    assert all(f"]({name}/README.md)" in index for name in folders)
