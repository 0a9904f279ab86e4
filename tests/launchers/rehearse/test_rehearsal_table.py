"""The table at the end of a rehearsal."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from cascade_rl.launchers.rehearse.rehearsal_table import rehearsal_table
from cascade_rl.rl_stages.run.run_folder import RunFolder
from tests.rl_stages.tiny_cascade import CASCADE


def test_a_stage_is_shown_as_it_ran_and_as_it_would_be(tmp_path: Path) -> None:
    names = [stage.name for stage in CASCADE.stages]
    with RunFolder.claim(tmp_path / "rehearsed", CASCADE) as (run, _):
        sampled = next(folder for folder in run.stages if folder.config.kind == "grpo")
        sampled.record_event("attempt", from_step=0)
        sampled.record_event("attempt", from_step=1)
        sampled.record_step(1, {"reward": 0.25, "completed_fraction": 0.5, "overlong_prompts": 3}, {}, 10)
        sampled.checkpoint(1).mkdir(parents=True)
    true = replace(CASCADE, nproc=64)
    failures = {name: [f"{name}: no room"] * (name == sampled.config.name) for name in names}
    console = Console(width=300, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(rehearsal_table(true, RunFolder.open(run.root), failures))
    rows = {line.split("│")[1].split()[0]: [cell.strip() for cell in line.split("│")[1:-1]]
            for line in console.export_text().splitlines() if line.startswith("│")}  # fmt: skip
    row = rows[sampled.config.name]
    steps, size = sampled.config.steps, sampled.config
    assert row[:7] == [
        f"{size.name} (not done)", f"1 of {steps}", str(size.prompts_per_step * size.rollouts_per_prompt), "0.50",
        "0.25", "3", "2",
    ]  # fmt: skip
    assert "64 GPUs" in row[8] and row[9] == "no room"
    assert rows[names[0]][1] == f"0 of {CASCADE.stages[0].steps}" and rows[names[0]][9] == "nothing found"
