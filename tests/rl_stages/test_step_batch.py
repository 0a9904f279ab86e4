"""A step's groups: drawn until there are enough with signal, and the same again after a kill."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Rollout, Sampling
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.rl_stages import prompt_ledger, step_batch
from cascade_rl.rl_stages.config.grpo_stage import CodeSwitch, EpochFilter, GrpoStage
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.prompt_ledger import PromptLedger
from cascade_rl.rl_stages.scoring.infrastructure import InfrastructureFailures
from cascade_rl.rl_stages.scoring.scored_sample import sequences_of
from cascade_rl.rl_stages.step_batch import StepBatch, TooFewGroups, draw_batch, first_draws, in_modes
from cascade_rl.rl_stages.tasks.prompt_stream import PromptStream, any_length

STAGE = GrpoStage(
    name="rl",
    domain="math",
    data=("x",),
    steps=9,
    token_budget=64,
    prompts_per_step=8,
    rollouts_per_prompt=4,
    sampling=Sampling(max_new_tokens=8),
    dynamic_filtering=True,
)
SCORES = {"useful": (1, 0, 1, 0), "easy": (1, 1, 1, 1), "hard": (0, 0, 0, 0), "broken": (1, 0, None, None)}


def tasks(**counts: int) -> list[Task]:
    return [
        Task(f"{kind}-{number}", "math", ({"role": "user", "content": "?"},), {})
        for kind, count in counts.items()
        for number in range(count)
    ]


HALF = tasks(useful=50, easy=30, hard=20)


class Killed(BaseException):
    pass


class FakeSession:
    """A policy whose answers to a prompt are scored by the kind of the prompt; dies in draw number `dies_in`."""

    seed, elsewhere = 5, False
    cascade = SimpleNamespace(room=lambda stage: stage, withheld=lambda stage: 0.1)

    def __init__(self, root: Path, stage: GrpoStage, first_step: int, dies_in: int) -> None:
        self.layout = SimpleNamespace(rollout=RolloutConfig())
        self.folder, self.stage, self.first_step = SimpleNamespace(root=root), stage, first_step
        self.labels: list[str] = []
        self.dies_in = dies_in

    def prompt_room(self, *_: object) -> Any:
        return SimpleNamespace(admits=any_length)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield

    def draw(self, label: str, tasks: Sequence[Task], group: int, sampling: Sampling) -> list[list[Rollout]]:
        self.labels.append(label)
        if len(self.labels) == self.dies_in:
            raise Killed
        ids = np.zeros(2, np.int64)
        return [
            [Rollout(f"{label}/{p}/{t.id}/{i}", ids, ids, ids, None, ((0, 0),), "stop") for i in range(group)]
            for p, t in enumerate(tasks)
        ]

    def on_rank0[T](self, produce: Callable[[Any], T], told: Callable[[T], T]) -> T:
        found = produce(self)
        return pickle.loads(pickle.dumps(told(found))) if self.elsewhere else found

    def rewards(self, tasks: Sequence[Task], groups: Sequence[Sequence[Rollout]]) -> list[list[tuple[str, Verdict]]]:
        pairs = zip(tasks, groups, strict=True)
        return [[(task.id, self._verdict(task, place)) for place in range(len(group))] for task, group in pairs]

    def _verdict(self, task: Task, place: int) -> Verdict:
        score = SCORES[task.id.partition("-")[0]][place]
        return Verdict.infrastructure_failure("judge is down") if score is None else Verdict.scored(float(score))


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_ledger, "from_rank0", lambda produce: produce())
    monkeypatch.setattr(prompt_ledger, "is_rank0", lambda: True)


def run(
    root: Path, data: Sequence[Task], steps: range, stage: GrpoStage = STAGE, dies_in: int = 0
) -> tuple[list[StepBatch], FakeSession]:
    """The batches of some steps, by a process that starts at the first of them."""
    session: Any = FakeSession(root, stage, steps.start, dies_in)
    with patch.object(prompt_ledger, "open_prompts", lambda _, *how, **__: PromptStream(data, *how)):
        prompts = PromptLedger(session)
    stream = first_draws(session, prompts)
    return [draw_batch(stream, stage, prompts, step) for step in steps], session


def kinds(batch: StepBatch) -> list[str]:
    return [group[0].task.id.partition("-")[0] for group in batch.groups]


def ids(batch: StepBatch) -> list[str]:
    return [sample.rollout.id for sample in batch.samples]


def test_without_dynamic_filtering_a_step_takes_what_it_draws(tmp_path: Path) -> None:
    (first, second), session = run(tmp_path, HALF, range(2), replace(STAGE, dynamic_filtering=False))
    assert session.labels == ["rl/1", "rl/2"]
    assert len(first.samples) == len(first.drawn) == 32
    assert {"easy", "useful"} <= set(kinds(first) + kinds(second))
    assert first.metrics(STAGE).keys() - first.metrics(replace(STAGE, dynamic_filtering=False)).keys() == {
        "draws", "accept_rate", "surplus_groups"
    }  # fmt: skip


def test_groups_without_signal_are_dropped_and_replaced(tmp_path: Path) -> None:
    (batch,), session = run(tmp_path, HALF, range(1))
    assert kinds(batch) == ["useful"] * 8
    assert session.labels[:2] == ["rl/1", "rl/1+1"]
    assert ids(batch) == [sample.rollout.id for sample in batch.drawn if "useful" in sample.rollout.id][:32]
    groups = len(batch.drawn) / 4
    accepted = sum("useful" in sample.rollout.id for sample in batch.drawn) / 4
    metrics = batch.metrics(STAGE)
    assert metrics["draws"] == len(session.labels) > 1
    assert metrics["accept_rate"] == accepted / groups
    assert metrics["surplus_groups"] == accepted - 8
    assert metrics["signal_fraction"] == 1.0
    assert metrics["reward"] == np.mean([sample.reward for sample in batch.drawn])


def test_a_rank_without_the_tokens_takes_the_same_groups(tmp_path: Path) -> None:
    """With the same advantages and metrics, and nothing that is as long as the answers."""
    (here,), _ = run(tmp_path, HALF, range(1))
    (tmp_path / "prompts.jsonl").unlink()
    with patch.object(FakeSession, "elsewhere", True):
        (there,), _ = run(tmp_path, HALF, range(1))
    assert ids(there) == ids(here)
    assert [sample.advantage for sample in there.samples] == [sample.advantage for sample in here.samples]
    assert there.metrics(STAGE) == here.metrics(STAGE)
    assert len(sequences_of(here.samples, 1.0)) == len(here.samples)
    assert sequences_of(there.samples, 1.0) == []
    assert {(sample.text, sample.task.messages) for sample in there.samples} == {("", ())}


def test_a_draw_takes_what_is_missing_over_the_share_that_had_signal() -> None:
    assert step_batch._wanted(8, drawn=0, kept=0) == 8
    assert step_batch._wanted(8, drawn=8, kept=0) == 8
    assert step_batch._wanted(8, drawn=8, kept=6) == 3  # 2 missing, 3 of 4 have signal
    assert step_batch._wanted(8, drawn=8, kept=1) == 8  # 56 would be needed


def test_surplus_groups_are_the_last_ones_and_are_dropped(tmp_path: Path) -> None:
    """6 of the first 8 prompts have signal; 3 more are drawn for the 2 that are missing, and all 3 have."""
    data = tasks(useful=40, hard=13)
    batches, _ = run(tmp_path, data, range(6))
    surplus = [batch for batch in batches if batch.metrics(STAGE)["surplus_groups"]]
    assert surplus
    for batch in surplus:
        accepted = [s.rollout.id for s in batch.drawn if "useful" in s.rollout.id]
        assert ids(batch) == accepted[:32]
        assert batch.metrics(STAGE)["surplus_groups"] == len(accepted) / 4 - 8


def test_a_step_that_does_not_get_full_is_an_error_with_its_accept_rates(tmp_path: Path) -> None:
    stage = replace(STAGE, max_draws=3)
    with pytest.raises(TooFewGroups, match=r"step 1: expected 8 groups .* found 0 in 3 draws \(0 of 8, 0 of 8, 0 of 8"):
        run(tmp_path, tasks(easy=30, hard=30), range(1), stage)


@pytest.mark.parametrize("epoch_filter", [None, EpochFilter()])
@pytest.mark.parametrize("dies_in", [2, 3, 5, 8])
def test_a_kill_in_a_step_changes_nothing(tmp_path: Path, dies_in: int, epoch_filter: EpochFilter | None) -> None:
    """The whole run, and one that dies in a draw and goes on from the checkpoint of one step before; a few epochs."""
    stage, data = replace(STAGE, epoch_filter=epoch_filter), tasks(useful=20, easy=6, hard=6)
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole, session = run(tmp_path / "whole", data, range(6), stage)
    step_of_death = int(session.labels[dies_in - 1].removeprefix("rl/").partition("+")[0])
    with pytest.raises(Killed):
        run(tmp_path / "killed", data, range(6), stage, dies_in)
    checkpoint = max(0, step_of_death - 2)
    rest, _ = run(tmp_path / "killed", data, range(checkpoint, 6), stage)
    assert [ids(batch) for batch in rest] == [ids(batch) for batch in whole[checkpoint:]]
    files = [tmp_path / name / "prompts.jsonl" for name in ("whole", "killed")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_other_data_than_before_are_refused(tmp_path: Path) -> None:
    run(tmp_path, HALF, range(2))
    with pytest.raises(UserError, match=r"prompts\.jsonl: step 1 drew \['.*Put the data back"):
        run(tmp_path, HALF[1:], range(2, 3))


def test_a_step_without_its_draws_is_refused(tmp_path: Path) -> None:
    run(tmp_path, HALF, range(2))
    with pytest.raises(UserError, match="expected draws of step 3, found none"):
        run(tmp_path, HALF, range(4, 5))


@pytest.mark.parametrize("dynamic", [False, True])
def test_infrastructure_failures_are_masked_up_to_the_bound(tmp_path: Path, dynamic: bool) -> None:
    """Half of each answer group of 1 prompt in 8 fails: 2 of 32 samples."""
    stage = replace(STAGE, dynamic_filtering=dynamic, max_infrastructure_failures=2 / 32)
    (batch,), _ = run(tmp_path, tasks(useful=7, broken=1), range(1), stage)
    failed = [sample for sample in batch.samples if not sample.trained]
    assert [sample.rollout.id.partition("broken-0/")[2] for sample in failed] == ["2", "3"]
    assert batch.metrics(stage)["infrastructure_failure_fraction"] == 2 / 32
    (tmp_path / "prompts.jsonl").unlink()
    with pytest.raises(InfrastructureFailures) as error:
        run(tmp_path, tasks(useful=7, broken=1), range(1), replace(stage, max_infrastructure_failures=0.06))
    assert "step 1: 2 of 32 answers could not be scored, expected at most a share of 0.06" in str(error.value)
    assert "First reasons: judge is down. Failed: rl/1/" in str(error.value)
    assert str(error.value).count("/broken-0/") == 2


@pytest.mark.parametrize(("fraction", "thinking"), [(0.5, 4), (0.0, 0), (1.0, 8), (0.3, 2), (0.29, 2)])
def test_modes_are_mixed_in_each_draw(fraction: float, thinking: int) -> None:
    modes = [task.thinking for task in in_modes(HALF[:8], fraction)]
    assert modes.count(True) == thinking
    assert modes.count(False) == 8 - thinking
    if fraction == 0.5:
        assert modes == [True, False] * 4


def test_without_mixing_the_template_decides() -> None:
    assert in_modes(HALF, None) == HALF


def test_the_rate_of_code_switches_is_told(tmp_path: Path) -> None:
    stage = replace(STAGE, code_switch=CodeSwitch(reward=-1.0))
    data = [replace(task, id=task.id.replace("-", "-答" if i % 2 else "-")) for i, task in enumerate(tasks(useful=8))]
    (batch,), _ = run(tmp_path, data, range(1), stage)
    # an answer of this policy is the id of its task: half of the groups have -1 throughout, and so no signal
    assert batch.metrics(stage)["code_switch_fraction"] == 0.5
