"""Files by an issue's words, and the rows that show them."""

import math

import pytest

from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff
from cascade_rl.rl_stages.swe_tasks.retrieval import retrieved, words
from cascade_rl.rl_stages.swe_tasks.task_rows import task_rows

FILES = {
    "pkg/heap.py": "class HeapQueue:\n    def push_all(self, items):\n        pass\n",
    "pkg/lists.py": "def push(items, item):\n    items.append(item)\n",
    "pkg/cups.py": "def fill(cup):\n    return cup\n",
    "pkg/books.py": "def read(book):\n    return book\n",
    "pkg/coins.py": "def pay(coin):\n    return coin\n",
    "pkg/boxes.py": "def open(box):\n    return box\n",
    "setup.py": "HeapQueue push_all\n",
    "pkg/heap.txt": "HeapQueue push_all\n",
}
ISSUE = "HeapQueue.push_all() loses its items"


def test_words_are_the_parts_of_names() -> None:
    assert words("HTTPServer.push_all2(aB)") == ["http", "server", "push", "all", "2", "a", "b"]


def test_the_best_source_files_come_first_and_those_that_fit_alike_by_name() -> None:
    assert list(retrieved(ISSUE, FILES)) == [f"pkg/{name}.py" for name in ("heap", "lists", "books", "boxes", "coins")]
    assert retrieved(ISSUE, FILES, count=1) == {"pkg/heap.py": FILES["pkg/heap.py"]}


def test_scores_are_those_of_bm25() -> None:
    """Three files of equal length: a word counts by log(1 + (N - n + 0.5) / (n + 0.5)) f / (f + 1.5)."""
    files = {f"{name}.py": text for name, text in (("a", "x x y"), ("b", "y y z"), ("c", "z z z"))}

    def score(**found: tuple[int, int]) -> float:
        return sum(math.log(1 + (3.5 - n) / (n + 0.5)) * f / (f + 1.5) for n, f in found.values())

    assert score(y=(2, 1), z=(2, 2)) < score(x=(1, 2), y=(2, 1))
    assert list(retrieved("x y z", files, 2)) == ["a.py", "b.py"]
    assert score(z=(2, 3)) > score(y=(2, 2))
    assert list(retrieved("y z", files)) == ["b.py", "c.py", "a.py"]


@pytest.mark.parametrize(("path", "shown"), [("pkg/heap.py", [1, 5]), ("pkg/cups.py", [1])])
def test_retrieved_files_are_shown_where_they_hold_the_golden_ones(path: str, shown: list[int]) -> None:
    fields = {
        "instance_id": "one",
        "problem_statement": ISSUE,
        "repo_snapshot": {"files": FILES, "tests": {"test_it.py": ""}},
        "FAIL_TO_PASS": ["test_it.py::test"],
        "gold_patch": unified_diff({path: FILES[path]}, {path: FILES[path] + "# repaired\n"}),
    }
    rows = list(task_rows("swe_agentless", fields))
    assert [len(row["files"]) for row in rows] == shown
    for row in rows:
        prompt = row["responses_create_params"]["input"][0]["content"]
        assert all(f"### {name}\n```python\n{text.rstrip()}" in prompt for name, text in row["files"].items())
        assert prompt.count("### pkg/") == len(row["files"])
