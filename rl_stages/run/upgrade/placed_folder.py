"""What a stage folder of an earlier launch says: which stage it was, and how far it came."""

from pathlib import Path


def stage_name(label: str) -> str:
    """The stage of a folder called `label`, such as 02_if_rl."""
    return label.partition("_")[2]


def newest_step(folder: Path) -> int:
    """The step of its newest complete checkpoint; 0 if there is none."""
    found = (folder / "checkpoints").glob("step_*[0-9]")
    return max((int(path.name.removeprefix("step_")) for path in found), default=0)


def progress_of(folder: Path) -> str:
    """In words. Empty if there is no work in it."""
    if (folder / "done").exists():
        return "done"
    return f"at step {step}" if (step := newest_step(folder)) else ""
