"""Every prompt once per epoch, and a step's prompts from its number alone."""

from collections import Counter

from cascade_rl.rl_stages.prompt_stream import PromptStream
from cascade_rl.rl_stages.task import Task

TASKS = [Task(f"math-{number}", "math", (), {}) for number in range(10)]


def ids(stream: PromptStream, steps: range, count: int) -> list[str]:
    return [task.id for step in steps for task in stream.batch(step, count)]


def test_each_prompt_comes_once_per_epoch_also_across_batches() -> None:
    """Batches of 4 do not divide an epoch of 10."""
    drawn = ids(PromptStream(TASKS, seed=3), range(10), 4)
    for epoch in range(4):
        assert sorted(drawn[10 * epoch : 10 * epoch + 10]) == sorted(task.id for task in TASKS)
    assert drawn[:10] != drawn[10:20]


def test_a_batch_larger_than_the_tasks_repeats_them_evenly() -> None:
    counts = Counter(ids(PromptStream(TASKS, seed=3), range(1), 25))
    assert len(counts) == 10
    assert set(counts.values()) == {2, 3}


def test_a_resumed_run_draws_what_it_would_have_drawn() -> None:
    whole = ids(PromptStream(TASKS, seed=3), range(8), 4)
    assert ids(PromptStream(TASKS, seed=3), range(5, 8), 4) == whole[20:]


def test_another_seed_is_another_order() -> None:
    assert ids(PromptStream(TASKS, seed=3), range(2), 5) != ids(PromptStream(TASKS, seed=4), range(2), 5)
