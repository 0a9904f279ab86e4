"""Every prompt once per epoch, and what an epoch filter leaves of the next."""

from collections import Counter
from collections.abc import Iterator

import pytest

from cascade_rl.rl_stages.config.grpo_stage import EpochFilter
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.tasks.prompt_stream import NoPromptLeft, PromptStream

TASKS = [Task(f"math-{number}", "math", (), {}) for number in range(10)]
MANY = [Task(f"{kind}-{number}", "math", (), {}) for kind in ("hard", "easy", "useful") for number in range(2000)]
RATES = {"hard": 0.0, "easy": 1.0, "useful": 0.5}


def ids(stream: PromptStream, batches: int, count: int) -> list[str]:
    return [task.id for _ in range(batches) for task in stream.take(count)]


def epochs(stream: PromptStream, count: int) -> Iterator[Counter[str]]:
    """How many prompts of each kind are in the first epochs, each taken and answered as a whole."""
    for _ in range(count):
        size = len(stream.order) or len(stream._order(stream.epoch + 1))
        kinds = [task.id.partition("-")[0] for task in stream.take(size)]
        stream.learn(stream.taken, [RATES[kind] for kind in kinds])
        yield Counter(kinds)


def test_each_prompt_comes_once_per_epoch_also_across_batches() -> None:
    """Batches of 4 do not divide an epoch of 10."""
    drawn = ids(PromptStream(TASKS, seed=3), 10, 4)
    for epoch in range(4):
        assert sorted(drawn[10 * epoch : 10 * epoch + 10]) == sorted(task.id for task in TASKS)
    assert drawn[:10] != drawn[10:20]


def test_a_batch_larger_than_the_tasks_repeats_them_evenly() -> None:
    counts = Counter(ids(PromptStream(TASKS, seed=3), 1, 25))
    assert len(counts) == 10
    assert set(counts.values()) == {2, 3}


def test_the_order_does_not_depend_on_how_it_is_taken() -> None:
    whole = ids(PromptStream(TASKS, seed=3), 8, 4)
    skipped = PromptStream(TASKS, seed=3)
    skipped.take(20)
    assert ids(skipped, 3, 4) == whole[20:]


def test_another_seed_is_another_order() -> None:
    assert ids(PromptStream(TASKS, seed=3), 2, 5) != ids(PromptStream(TASKS, seed=4), 2, 5)


def test_without_a_filter_pass_rates_change_nothing() -> None:
    assert list(epochs(PromptStream(MANY, seed=3), 2)) == [Counter(dict.fromkeys(RATES, 2000))] * 2


def test_a_tenth_of_the_hard_and_a_hundredth_of_the_easy_prompts_come_back() -> None:
    """Of 2000 each: 200 +- 13 and 20 +- 4.5 are expected, one standard deviation."""
    first, second, third = epochs(PromptStream(MANY, 3, EpochFilter()), 3)
    assert first == Counter(dict.fromkeys(RATES, 2000))
    for epoch in (second, third):
        assert epoch["useful"] == 2000
        assert 150 < epoch["hard"] < 250
        assert 2 < epoch["easy"] < 40


def test_the_newest_pass_rate_decides() -> None:
    never = EpochFilter(hard_readmission=0.0, easy_readmission=0.0)
    stream = PromptStream(TASKS, 3, never)
    stream.take(10)
    stream.learn(stream.taken, [0.0] * 4 + [1.0] * 3 + [None, 0.25, 0.75])
    dropped = {TASKS[index].id for index in stream.taken[:7]}
    assert set(ids(stream, 1, 3)) == {task.id for task in TASKS} - dropped
    stream.learn(stream.taken, [1.0, 0.0, 0.5])
    assert len({task.id for task in stream.take(4)}) == 1  # four epochs of the one prompt that is left
    stream.learn(stream.taken, [1.0] * 4)
    with pytest.raises(NoPromptLeft, match=r"epoch 7: .* found none of 10"):
        stream.take(1)
