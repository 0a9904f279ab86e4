import random
import subprocess

import pytest

from cascade_rl.rl_stages.rewards.swe.unified_diff import DiffError, apply_unified_diff, unified_diff

BEFORE = {"a.py": "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "gone.py": "x\n", "same.py": "s\f\n"}
AFTER = {"a.py": "1\n2\nthree\n4\n5\n6\n7\n8\n9", "new.py": "--- y\n", "same.py": "s\f\n"}


def test_a_diff_leads_from_one_to_the_other_and_back():
    diff = unified_diff(BEFORE, AFTER)
    assert apply_unified_diff(BEFORE, diff) == AFTER
    assert apply_unified_diff(AFTER, diff, reverse=True) == BEFORE


def test_random_texts():
    rng = random.Random(1)
    for _ in range(200):
        one, other = ("".join(rng.choices("ab\n", k=rng.randrange(1, 30))) for _ in range(2))
        diff = unified_diff({"f": one}, {"f": other})
        if one != other:
            assert apply_unified_diff({"f": one}, diff) == {"f": other}
            assert apply_unified_diff({"f": other}, diff, reverse=True) == {"f": one}


def test_what_git_prints_is_read(tmp_path):
    for side, files in (("a", BEFORE), ("b", AFTER)):
        (tmp_path / side).mkdir()
        for path, text in files.items():
            (tmp_path / side / path).write_text(text)
    command = ["git", "diff", "--no-index", "--no-prefix", "a", "b"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert apply_unified_diff(BEFORE, printed) == AFTER


@pytest.mark.parametrize(
    "diff",
    [
        "",
        "--- a/a.py\n+++ b/a.py\n",
        "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1 @@\n 1\n",
        "--- a/a.py\n+++ b/a.py\n@@ -2 +2 @@\n-1\n+one\n",
        "--- a/z.py\n+++ b/z.py\n@@ -1 +1 @@\n-1\n+one\n",
    ],
)
def test_a_diff_of_something_else(diff):
    with pytest.raises(DiffError, match="expected"):
        apply_unified_diff(BEFORE, diff)
