from difflib import SequenceMatcher

from cascade_rl.rl_stages.rewards.deadline_worker import DeadlineCheck
from cascade_rl.rl_stages.rewards.swe.similarity import similarity
from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff

BEFORE = {"a.py": "a = 1\nb = 2\n", "b.py": "c = 3\n"}
GOLD = {**BEFORE, "a.py": "a = 1\nb = 20\n"}


def test_equal_patches_and_patches_of_different_files():
    assert similarity(BEFORE, GOLD, GOLD) == (1.0, "characters")
    assert similarity(BEFORE, GOLD, {**BEFORE, "b.py": "c = 4\n"}) == (0.0, "characters")


def test_the_mean_over_the_union_of_touched_files():
    answer = {"a.py": "a = 1\nb = 21\n", "b.py": "c = 4\n"}
    one, other = (unified_diff({"a.py": BEFORE["a.py"]}, {"a.py": side["a.py"]}) for side in (GOLD, answer))
    ratio = SequenceMatcher(None, one, other, autojunk=False).ratio()
    assert similarity(BEFORE, GOLD, answer) == (ratio / 2, "characters")


def test_long_diffs_are_compared_by_lines():
    long = "\n".join(f"line {number} of many" for number in range(3000))
    value, metric = similarity(BEFORE, {**BEFORE, "a.py": long}, {**BEFORE, "a.py": long + "x"})
    assert metric == "lines" and 0.99 < value < 1


def test_a_pair_that_takes_forever_is_undecided_at_the_deadline():
    check = DeadlineCheck("cascade_rl.rl_stages.rewards.swe.similarity", 0.5)
    same, other = "a\n" * 20_000, "a\n" * 20_000 + "b\n"
    try:
        check({"before": BEFORE, "expected": GOLD, "answer": BEFORE})  # starts the process
        verdict = check({"before": {"a": ""}, "expected": {"a": same}, "answer": {"a": other}})
    finally:
        check.close()
    assert verdict.score in (0.0, None)  # None where others kept it from its processor
    assert verdict.detail.startswith("undecided after 0.5 s")
