"""No room is so large that nobody has seen all of it: folders of the product by files and by lines of code."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = sorted(init.parent for init in ROOT.glob("*/__init__.py") if init.parent.name != "tests")
MOST_FILES = 15
MOST_LINES = 1 / 5  # of the product, in a folder below the floors with all that is in it


def folders() -> list[Path]:
    found = [folder for floor in FLOORS for folder in (floor, *floor.rglob("*")) if folder.is_dir()]
    return [folder for folder in found if folder.name != "__pycache__"]


def lines_of_code(folder: Path) -> int:
    """Those that are not empty."""
    return sum(1 for path in folder.rglob("*.py") for line in path.read_text().splitlines() if line.strip())


def test_the_floors_are_found():
    assert [floor.name for floor in FLOORS] == ["distillation", "engine", "kernels", "launchers", "moe", "rl_stages"]
    assert lines_of_code(ROOT / "engine") > 1000


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_can_be_seen_at_once(folder: Path):
    files = [path.name for path in folder.iterdir() if path.is_file() and path.name != "__init__.py"]
    assert len(files) <= MOST_FILES, files


def test_no_folder_below_the_floors_holds_more_than_a_fifth_of_the_product():
    product = sum(map(lines_of_code, FLOORS))
    shares = {str(folder.relative_to(ROOT)): lines_of_code(folder) / product for folder in folders()}
    assert {name: share for name, share in shares.items() if "/" in name and share > MOST_LINES} == {}
