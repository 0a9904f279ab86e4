"""Pass rates behind a scripted engine: each task once, the engine kept busy, and no score where there is none."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.tokenizer import encode_prompt, train_tokenizer
from cascade_rl.rl_stages.scoring.answering import Answering
from cascade_rl.rl_stages.scoring.episodes import Episodes
from cascade_rl.rl_stages.scoring.judge import Judge

TOKENIZER = train_tokenizer([[{"role": "user", "content": "What is"}]])
RIGHT, WRONG, ENDLESS = r"\boxed{7}", r"\boxed{8}", "so"


class Scripted:
    """Answers that depend on the number of the answer; the newest request first."""

    def __init__(self, answers: tuple[str, ...]) -> None:
        self.answers, self.pending, self.most = answers, list[Request](), 0

    def submit(self, requests: Iterable[Request]) -> None:
        self.pending += requests
        self.most = max(self.most, len(self.pending))

    def results(self) -> Iterator[Rollout]:
        while self.pending:
            request = self.pending.pop()
            text = self.answers[int(request.id.rpartition("/")[2])]
            stop = [] if text == ENDLESS else [TOKENIZER.eos_token_id]
            ids = np.array(TOKENIZER.encode(text) + stop)
            finish = "stop" if stop else "length"
            prompt = np.array(request.prompt_ids)
            yield Rollout(request.id, prompt, ids, np.zeros(len(ids), np.float32), None, ((0, 0),), finish)


def task(name: str, domain: str = "math", **metadata: Any) -> Task:
    fields = metadata or {"expected_answer": "7"}
    return Task(name, domain, ({"role": "user", "content": f"What is {name}"},), fields)


def rated(engine: Any, tasks: list[Task], answers: int, in_flight: int = 4, longest: int = 1000) -> dict[str, Any]:
    sampling = Sampling(max_new_tokens=100, max_total_tokens=longest)
    with Judge(TOKENIZER) as judge, Episodes(TOKENIZER) as episodes:
        answering = Answering(engine, judge, episodes, TOKENIZER, sampling, answers, in_flight, longest)
        found = list(answering(tasks))
    assert len({answered.task.id for answered in found}) == len(found)
    return {answered.task.id: answered.unscored or answered.scores for answered in found}


def test_every_answer_of_every_task_is_scored_and_a_truncated_one_is_wrong() -> None:
    engine = Scripted((RIGHT, WRONG, RIGHT, ENDLESS))
    found = rated(engine, [task(f"t{number}") for number in range(20)], answers=4)
    assert len(found) == 20
    assert all(sorted(scores) == [0.0, 0.0, 1.0, 1.0] for scores in found.values())


def test_the_engine_holds_no_more_than_it_needs_to_stay_busy() -> None:
    engine = Scripted((RIGHT,) * 3)
    assert len(rated(engine, [task(f"t{number}") for number in range(50)], answers=3, in_flight=7)) == 50
    assert 7 <= engine.most < 10


def test_a_prompt_without_room_and_an_answer_without_a_score_are_named() -> None:
    long = Task("long", "math", ({"role": "user", "content": "x" * 950},), {"expected_answer": "7"})
    tokens = len(encode_prompt(TOKENIZER, long.messages))
    chat = task("chat", "rlhf", principle=None)
    found = rated(Scripted((RIGHT,) * 2), [task("a"), long, chat, task("b")], answers=2)
    assert found["a"] == found["b"] == [1.0, 1.0]
    assert found["long"] == f"expected a prompt of at most 900 tokens; found one of {tokens}"
    assert found["chat"].startswith(
        "expected a score of each answer; found 2 without one: expected 'instruction_id_list'"
    )


def test_tasks_that_all_have_no_room_end_at_once() -> None:
    assert len(rated(Scripted(()), [task(f"t{n}") for n in range(3)], answers=1, longest=101)) == 3
