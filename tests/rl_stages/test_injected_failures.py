"""What breaks around a verifier, for real: its samples are masked and counted, and past the rate the step ends."""

import os
import random
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from cascade_rl.engine.core.rollouts import Rollout, Sampling
from cascade_rl.rl_stages import prompt_ledger
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from cascade_rl.rl_stages.lessons import swe_executed
from cascade_rl.rl_stages.prompt_ledger import PromptLedger
from cascade_rl.rl_stages.rewards.adapters.nemo_gym import NemoGymVerifier
from cascade_rl.rl_stages.rewards.reward_models.judge_client import JudgeClient
from cascade_rl.rl_stages.rewards.swe import grading
from cascade_rl.rl_stages.rewards.swe.instance import parse_instance
from cascade_rl.rl_stages.rewards.verifiers.judged.rlhf import RankingVerifier
from cascade_rl.rl_stages.rewards.verifiers.programs.code import CodeVerifier
from cascade_rl.rl_stages.rewards.verifiers.programs.code_rows import parse_row
from cascade_rl.rl_stages.sandbox import process_tree
from cascade_rl.rl_stages.sandbox.outside.probe import probe
from cascade_rl.rl_stages.scoring.infrastructure import InfrastructureFailures
from cascade_rl.rl_stages.scoring.judge import Judge, MakeVerifier
from cascade_rl.rl_stages.step_batch import StepBatch, draw_batch, first_draws
from cascade_rl.rl_stages.tasks.prompt_stream import PromptStream
from tests.rl_stages.rewards.adapters.test_nemo_gym import server
from tests.rl_stages.small_disk import small_disk
from tests.rl_stages.test_step_batch import STAGE, FakeSession

MESSAGE = {"role": "user", "content": "What is 3 + 4?"}
TOKENIZER = train_tokenizer([[MESSAGE]])
LESSON = next(swe_executed.lessons())
TESTS = {"verifier_metadata": {"unit_tests": {"inputs": ["1"], "outputs": ["1"]}}}

Injected = Iterator[tuple[Task, str, MakeVerifier | None]]  # a task, an answer, and what judges it instead


@contextmanager
def judge_down(_: Path) -> Injected:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    settings = RewardModel(kind="server", model="judge", url=url, deadline_seconds=5.0)

    def maker() -> RankingVerifier:
        return RankingVerifier(JudgeClient(url, "judge", deadline_seconds=5.0, retries=1, concurrency=4), settings, 4)

    yield Task("broken-0", "rlhf", (MESSAGE,), {"principle": None}), "Hello", maker


@contextmanager
def sandbox_killed(_: Path) -> Injected:
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.02):
            for pid in process_tree.descendants(os.getpid()):
                if b"sandbox.inside.box_worker" in _command_line(pid):
                    os.kill(pid, 9)

    probe()  # finds a tier while there are workers
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        task = Task("broken-0", "code", (MESSAGE,), parse_row(TESTS))
        yield task, "```\nprint(input())\n```", lambda: CodeVerifier(slots=1)
    finally:
        over.set()
        killer.join()


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@contextmanager
def disk_full(folder: Path) -> Injected:
    with small_disk(folder, 64), patch.object(tempfile, "tempdir", str(folder)):
        (folder / "all").write_bytes(b"x" * (64 << 10))
        answer = LESSON.right(random.Random(0))
        yield Task("broken-0", "swe_executed", (MESSAGE,), parse_instance(LESSON.fields)), answer, None


@contextmanager
def no_test_collected(_: Path) -> Injected:
    runner = "import json, sys; nonce = json.load(sys.stdin)['nonce']; print(nonce, 'ready'); print(nonce, '{}')"
    with patch.object(grading, "_RUNNER", runner):
        answer = LESSON.right(random.Random(0))
        yield Task("broken-0", "swe_executed", (MESSAGE,), parse_instance(LESSON.fields)), answer, None


@contextmanager
def tool_server_slow(_: Path) -> Injected:
    with server("slow") as (address, _seen):
        task = Task("broken-0", f"nemo-gym:{address}", (MESSAGE,), {"wanted": "yes"})
        yield task, "yes", lambda: NemoGymVerifier(address, deadline_seconds=0.3)


class JudgedSession(FakeSession):
    """A policy that always says the same on a prompt, really judged."""

    def __init__(self, root: Path, judge: Judge, texts: dict[str, str]) -> None:
        super().__init__(root, STAGE, 0, 0)
        self.judge, self.texts = judge, texts

    def draw(self, label: str, tasks: Sequence[Task], group: int, sampling: Sampling) -> list[list[Rollout]]:
        return [[self._rollout(f"{label}/{task.id}/{i}", task) for i in range(group)] for task in tasks]

    def rewards(self, tasks: Sequence[Task], groups: Sequence[Sequence[Rollout]]) -> Any:
        return self.judge(tasks, groups)

    def _rollout(self, name: str, task: Task) -> Rollout:
        ids = np.array([*TOKENIZER.encode(self.texts[task.id], add_special_tokens=False), TOKENIZER.eos_token_id])
        return Rollout(name, np.array([1]), ids, np.zeros(len(ids), np.float32), None, ((0, 0),), "stop")


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_ledger, "from_rank0", lambda produce: produce())
    monkeypatch.setattr(prompt_ledger, "is_rank0", lambda: True)


HEALTHY = [Task(f"math-{i}", "math", (MESSAGE,), {"expected_answer": "7"}) for i in range(3)]


def step(root: Path, stage: GrpoStage, broken: Task, answer: str, maker: MakeVerifier | None) -> StepBatch:
    root.mkdir()
    texts = {broken.id: answer} | {task.id: "\\boxed{7}" for task in HEALTHY}
    made = [broken, *HEALTHY]
    data = patch.object(prompt_ledger, "open_prompts", lambda _, *how, **__: PromptStream(made, *how))
    with data, Judge(TOKENIZER, {broken.domain: maker} if maker else {}) as judge:
        session: Any = JudgedSession(root, judge, texts)
        session.stage = stage
        prompts = PromptLedger(session)
        return draw_batch(first_draws(session, prompts), stage, prompts, 0)


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("inject", "reason"),
    [
        (judge_down, "All connection attempts failed"),
        (sandbox_killed, "the worker died"),
        (disk_full, "No space left on device"),
        (no_test_collected, "with its golden patch in the sandbox of"),
        (tool_server_slow, "timed out"),
    ],
)
def test_a_failure_masks_is_counted_and_ends_the_step_past_the_rate(
    inject: Callable[[Path], AbstractContextManager[Any]], reason: str, tmp_path: Path
) -> None:
    """One prompt's verifier fails, three others' do not: 4 of 16 samples."""
    stage = replace(STAGE, dynamic_filtering=False, prompts_per_step=4, max_infrastructure_failures=0.25)
    with inject(tmp_path / "disk") as broken:
        batch = step(tmp_path / "masked", stage, *broken)
        with pytest.raises(InfrastructureFailures) as error:
            step(tmp_path / "ended", replace(stage, max_infrastructure_failures=0.2), *broken)
    names = [f"rl/1/broken-0/{i}" for i in range(4)]
    assert [(s.rollout.id, s.reward) for s in batch.samples if not s.trained] == [(name, None) for name in names]
    assert [sample.reward for sample in batch.samples if sample.trained] == [1.0] * 12
    assert batch.metrics(stage)["infrastructure_failure_fraction"] == 0.25
    assert "4 of 16 answers could not be scored" in str(error.value) and reason in str(error.value)
    assert f"Failed: {', '.join(names)}." in str(error.value)
