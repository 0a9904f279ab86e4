"""Scripted agents on mutants of a package, through client, sampler, environment loop, sandbox, grading and judge."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cascade_rl.engine.core.rollouts import Outcome, Sampling
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.environments.swe_agent import SweAgent
from cascade_rl.rl_stages.rewards.swe.instance import Instance, parse_instance
from cascade_rl.rl_stages.scoring.judge import Judge
from cascade_rl.rl_stages.scoring.scored_sample import Sample
from cascade_rl.rl_stages.swe_tasks.make_tasks import Report, TaskMaker
from tests.rl_stages.environments.scripted import QUESTION, TOKENIZER, Play
from tests.rl_stages.rewards.swe.tiny_package import REPOSITORY

SAMPLING = Sampling(900, stop_token_ids=(TOKENIZER.eos_token_id,), max_turns=3)
HOOK = "def pytest_runtest_makereport(item, call): call.excinfo = None"
SUBMIT = '<tool_call>{"name": "submit", "arguments": {}}</tool_call>'


@pytest.fixture(scope="module")
def agent() -> Iterator[SweAgent]:
    with closing(SweAgent()) as agent:
        yield agent


def bash(command: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': command}})}</tool_call>"


def repair(instance: Instance) -> tuple[str, int]:
    """A command that puts back the mutant's first line that is wrong, and the number of that line."""
    ((path, right),) = [(p, text) for p, text in instance.repaired.items() if text != instance.repository.files[p]]
    pairs = zip(right.splitlines(), instance.repository.files[path].splitlines(), strict=True)
    ((number, line),) = [(number, good) for number, (good, bad) in enumerate(pairs, start=1) if good != bad]
    escaped = line.replace("\\", "\\\\").replace("/", "\\/").replace("&", "\\&")
    return f"sed -i '{number}s/.*/{escaped}/' {path}", number


@pytest.mark.sandbox
def test_a_policy_that_solves_a_mutant_gets_one_and_no_other_does(
    agent: SweAgent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reference = {"files": REPOSITORY.files, "tests": REPOSITORY.tests}
    (fields,) = TaskMaker("tiny", REPOSITORY, reference, agent.sandbox).tasks(1, 3, Report())
    task = Task("mutant", "scripted", (QUESTION,), parse_instance(fields))
    command, number = repair(Instance.of(task.metadata))
    scripts = {
        "solves": [bash(f"sed -n {number}p tiny/lists.py"), bash(command), SUBMIT],
        "gives up": [SUBMIT],
        "tampers": [bash(f"echo '{HOOK}' > conftest.py; echo > tests/test_lists.py"), SUBMIT],
        "never ends": [bash(command)] * 3,
    }
    play = Play(monkeypatch, tmp_path, agent, lambda name, turn: scripts[name][turn], task, limit=1000)
    rollouts = play(scripts, SAMPLING)
    with Judge(TOKENIZER) as judge:
        ((*answers,),) = judge([task], [[rollouts[name] for name in scripts]])
    samples = {name: Sample(task, rollouts[name], *answer) for name, answer in zip(scripts, answers, strict=True)}
    found = {name: (sample.reward, sample.verdict.outcome, sample.rollout.turns) for name, sample in samples.items()}
    assert found == {
        "solves": (1.0, Outcome.COMPLETED, 3),
        "gives up": (0.0, Outcome.COMPLETED, 1),
        "tampers": (0.0, Outcome.COMPLETED, 2),
        "never ends": (0.0, Outcome.TRUNCATED, 3),
    }
    require_only_what_was_said_is_learned(samples["solves"], scripts["solves"])


def require_only_what_was_said_is_learned(sample: Sample, said: list[str]) -> None:
    sequence = sample.sequence(temperature=1.0)
    learned = sequence.token_ids[1:][sequence.loss_mask].tolist()
    expected = [[*TOKENIZER.encode(turn), TOKENIZER.eos_token_id] for turn in said]
    assert learned == [token for turn in expected for token in turn]
    hidden = sequence.token_ids[1:][~sequence.loss_mask]
    broken = Instance.of(sample.task.metadata).repository.files["tiny/lists.py"].splitlines()
    assert any(line and line in TOKENIZER.decode(hidden) for line in broken)
    assert not np.any(sequence.per_token["rollout_logprob"][~sequence.loss_mask])
