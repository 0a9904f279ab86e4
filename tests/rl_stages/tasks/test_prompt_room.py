"""Prompts that leave their answers too little room."""

from dataclasses import replace

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.room import Room
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.tokenizer import encode_prompt, train_tokenizer
from cascade_rl.rl_stages.tasks.prompt_room import PromptRoom, modes_of
from cascade_rl.rl_stages.tasks.prompt_stream import NoPromptLeft, PromptStream

WORDS = ("one two three four five six seven eight nine ten " * 4).split()
TASKS = [Task(f"task-{n}", "math", ({"role": "user", "content": " ".join(WORDS[:n])},), {}) for n in range(1, 31)]
TOKENIZER = train_tokenizer([task.messages for task in TASKS], vocab_size=320)
LENGTHS = {task.id: len(encode_prompt(TOKENIZER, task.messages)) for task in TASKS}
LIMIT = LENGTHS["task-10"]
ROOM = Room("rl", total=LIMIT + 50, min_answer_tokens=50)


def test_overlong_prompts_are_dropped_counted_and_told_once() -> None:
    told: list[str] = []
    room = PromptRoom(TOKENIZER, ROOM, say=told.append)
    stream = PromptStream(TASKS, 1, admits=room.admits)
    drawn = [task.id for task in stream.take(40)]
    fitting = {name for name, tokens in LENGTHS.items() if tokens <= LIMIT}
    assert "task-10" in fitting and set(drawn) == fitting
    assert room.dropped == {name: tokens for name, tokens in LENGTHS.items() if name not in fitting}
    assert room.metrics == {"overlong_prompts": len(TASKS) - len(fitting)}
    assert len(told) == 1 and "which leaves 50 of" in told[0]


def test_the_order_of_the_others_is_as_if_the_overlong_ones_were_not_there() -> None:
    room = PromptRoom(TOKENIZER, ROOM, say=lambda _: None)
    whole = [task.id for task in PromptStream(TASKS, 1).take(len(TASKS))]
    kept = PromptStream(TASKS, 1, admits=room.admits).take(8)
    assert [task.id for task in kept] == [name for name in whole if LENGTHS[name] <= LIMIT][:8]


def test_an_overlong_prompt_may_be_an_error() -> None:
    room = PromptRoom(TOKENIZER, replace(ROOM, overlong="error"))
    assert room.admits(TASKS[0])
    with pytest.raises(UserError, match=r"task-30: expected a prompt of at most .* rl\.overlong_prompts=drop"):
        room.admits(TASKS[-1])


def test_a_stage_without_any_prompt_that_fits_ends() -> None:
    room = PromptRoom(TOKENIZER, replace(ROOM, total=51), say=lambda _: None)
    with pytest.raises(NoPromptLeft, match="found none of 30, and 30 too long"):
        PromptStream(TASKS, 1, admits=room.admits).take(1)


@pytest.mark.parametrize(("share", "modes"), [(None, (None,)), (1.0, (True,)), (0.0, (False,)), (0.5, (True, False))])
def test_a_prompt_is_measured_in_the_modes_in_which_it_is_asked(
    share: float | None, modes: tuple[bool | None, ...]
) -> None:
    assert modes_of(share) == modes
