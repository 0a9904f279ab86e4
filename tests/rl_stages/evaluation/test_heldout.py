"""Held-out scores: means over the answers that have one, where enough of them do."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cascade_rl.distillation import mopd
from cascade_rl.engine.core.rollouts import Rollout
from cascade_rl.rl_stages import prompt_ledger, sft
from cascade_rl.rl_stages import session as session_module
from cascade_rl.rl_stages.bradley_terry import RewardSession
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.core.messages import Message
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.evaluation.heldout import evaluate, heldout_tasks
from cascade_rl.rl_stages.prompt_ledger import PromptLedger
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.sample_record import read_samples
from cascade_rl.rl_stages.scoring.infrastructure import InfrastructureFailures
from cascade_rl.rl_stages.session import Session
from cascade_rl.rl_stages.sft import Mix
from cascade_rl.rl_stages.tasks.domains import lessons_of
from cascade_rl.rl_stages.tasks.load_tasks import split_of
from cascade_rl.rl_stages.tasks.prompt_stream import any_length
from cascade_rl.rl_stages.tasks.row_form import RowForm
from tests.rl_stages.tiny_cascade import CASCADE

BROKEN = Verdict.infrastructure_failure("disk full")


def no_limit(*_: object) -> Any:
    return SimpleNamespace(admits=any_length)


@pytest.fixture
def stage(tmp_path: Path) -> StageFolder:
    with RunFolder.claim(tmp_path / "tiny", CASCADE) as (run, _):
        return run.stage("math_rl")


def answer(name: str) -> Rollout:
    return Rollout(name, np.array([1, 2]), np.array([3, 4]), np.float32([-1, -0.5]), None, ((2, 0),), "stop")


def scores(stage: StageFolder, verdicts: list[Verdict]) -> dict[str, float]:
    """Of 32 prompts of each domain, whose answers get these verdicts in turn."""

    def judge(tasks: list[Task], _groups: object) -> list[list[tuple[str, Verdict]]]:
        return [[("seven", verdicts[place % len(verdicts)])] for place in range(len(tasks))]

    zero = SimpleNamespace(judge=judge, folder=stage)
    session: Any = SimpleNamespace(
        cascade=CASCADE,
        prompt_room=no_limit,
        draw_all=lambda batches, group, sampling, heldout: {
            label: [[answer(f"{label}/{i}")] for i in range(len(tasks))] for label, tasks in batches.items()
        },
        on_rank0=lambda produce: produce(zero),
    )
    return evaluate(session, "after")


def test_failures_below_the_bound_are_left_out_of_the_mean(stage: StageFolder) -> None:
    verdicts = [BROKEN] * 2 + [Verdict.scored(1.0)] * 15 + [Verdict.scored(0.0)] * 15
    assert scores(stage, verdicts) == {"instruction_following": 0.5, "math": 0.5}


def test_the_answers_are_kept_with_their_verdicts(stage: StageFolder) -> None:
    scores(stage, [Verdict.scored(1.0, {"style": 0.5}, "7 = 7"), BROKEN, *[Verdict.scored(0.0)] * 30])
    right, broken, *_ = rows = read_samples(stage.heldout("after"))
    assert len(rows) == 64 and {row["domain"] for row in rows} == {"instruction_following", "math"}
    assert (right["id"], right["text"], right["detail"]) == ("heldout-instruction_following/0", "seven", "7 = 7")
    assert (right["reward"], right["reward_parts"], broken["reward"]) == (1.0, [("style", 0.5)], None)
    assert (right["token_ids"], right["rollout_logprobs"], right["versions"]) == ([3, 4], [-1.0, -0.5], [[2, 0]])
    assert right["train_logprobs"] is None and right["loss_mask"] == [False, False]
    assert not stage.heldout("before").exists()


def test_failures_beyond_the_bound_end_the_stage(stage: StageFolder) -> None:
    verdicts = [BROKEN] * 4 + [Verdict.scored(1.0)] * 28
    with pytest.raises(InfrastructureFailures) as error:
        scores(stage, verdicts)
    assert "held-out instruction_following: 4 of 32 answers could not be scored" in str(error.value)
    assert "disk full" in str(error.value)
    assert "heldout-instruction_following/0, heldout-instruction_following/1" in str(error.value)


MOST = 0.9


def wide() -> Cascade:
    """The tiny cascade, with most prompts held out."""
    return replace(CASCADE, evaluation=replace(CASCADE.evaluation, prompts_per_domain=10_000, heldout_fraction=MOST))


def splits(conversations: Iterable[Sequence[Message]]) -> set[str]:
    return {split_of([m for m in conversation if m["role"] != "assistant"], MOST) for conversation in conversations}


def test_no_reader_of_a_stage_sees_a_prompt_that_the_evaluation_holds_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of RL, preference pairs, generated demonstrations and, through `open_prompts`, MOPD."""
    heldout = heldout_tasks(wide(), "math")
    assert len(heldout) == pytest.approx(MOST * sum(1 for _ in lessons_of("math")), rel=0.05)
    monkeypatch.setattr(prompt_ledger, "from_rank0", lambda produce: produce())
    stage = next(stage for stage in CASCADE.stages if isinstance(stage, GrpoStage))
    session: Any = SimpleNamespace(
        cascade=wide(),
        stage=stage,
        layout=wide().layout(stage),
        seed=1,
        first_step=0,
        folder=SimpleNamespace(root=tmp_path),
        prompt_room=no_limit,
    )
    assert splits(task.messages for task in PromptLedger(session).take(0, 0, 200)) == {"train"}
    mix = Mix(["generate:math@1"], 1, wide().evaluation.heldout_fraction)
    assert splits(mix.at(position).messages for position in range(200)) == {"train"}
    trained = SimpleNamespace(data=("generate:rlhf",), heldout=(), columns={})
    pairs: Any = SimpleNamespace(cascade=wide(), seed=1, stage=trained)
    assert splits(pair.messages for pair in RewardSession.pairs(pairs, "train")) == {"train"}
    assert splits(pair.messages for pair in RewardSession.pairs(pairs, "heldout")) == {"heldout"}


def test_distillation_and_fine_tuning_read_the_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(Exception):
        pass

    def seen(*given: Any, **named: Any) -> None:
        raise Seen(given, named)

    stage = replace(next(stage for stage in CASCADE.stages if isinstance(stage, GrpoStage)), data=("generate:math",))
    how = {"cascade": wide(), "trainer": None, "seed": 1, "first_step": 0, "prompt_room": no_limit, "log": None}
    session: Any = SimpleNamespace(stage=stage, **how)
    monkeypatch.setattr(mopd, "open_prompts", seen)
    with pytest.raises(Seen) as distilled:
        mopd.run(session)
    form = RowForm.of(stage)
    assert distilled.value.args[1] == {"admits": any_length, "heldout_fraction": MOST, "form": form}
    monkeypatch.setattr(sft, "Mix", seen)
    with pytest.raises(Seen) as tuned:
        sft.run(session)
    assert tuned.value.args[0] == (("generate:math",), 1, MOST, form)


def sums(path: Path, first: int, count: int) -> str:
    rows = ({"prompt": f"What is {n} + {n}?", "expected_answer": str(n + n)} for n in range(first, first + count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_of_its_own_are_held_out_and_all_of_the_data_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of another stage that trains on the domain, whose data are then no longer scored."""
    monkeypatch.setattr(prompt_ledger, "from_rank0", lambda produce: produce())
    trained, heldout = sums(tmp_path / "train.jsonl", 0, 40), sums(tmp_path / "test.jsonl", 40, 9)
    other = next(stage for stage in CASCADE.stages if stage.name == "math_rl")
    stage = replace(other, name="own", data=(trained,), heldout=(heldout,))
    cascade = replace(wide(), stages=(stage, other))
    scored = {task.messages[0]["content"] for task in heldout_tasks(cascade, "math")}
    assert scored == {f"What is {n} + {n}?" for n in range(40, 49)}
    how = {"seed": 1, "first_step": 0, "folder": SimpleNamespace(root=tmp_path), "prompt_room": no_limit}
    session: Any = SimpleNamespace(cascade=cascade, stage=stage, layout=cascade.layout(stage), **how)
    assert {task.id for task in PromptLedger(session).take(0, 0, 40)} == {f"train-{n:06d}" for n in range(40)}


def test_a_reward_model_has_pairs_of_its_own_held_out(tmp_path: Path) -> None:
    def pairs(name: str, count: int) -> str:
        rows = ({"prompt": f"{name} {n}", "chosen": "yes", "rejected": "no"} for n in range(count))
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    stage = SimpleNamespace(data=(pairs("train.jsonl", 30),), heldout=(pairs("test.jsonl", 3),), columns={})
    session: Any = SimpleNamespace(cascade=wide(), seed=1, stage=stage)
    read = {split: RewardSession.pairs(session, split) for split in ("train", "heldout")}  # type: ignore[arg-type]
    assert {split: len(found) for split, found in read.items()} == {"train": 30, "heldout": 3}
    assert all(pair.messages[0]["content"].startswith("test.jsonl") for pair in read["heldout"])


def test_a_probe_has_room_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a held-out prompt leaves an answer one token."""
    longest = CASCADE.layout(CASCADE.stages[0]).rollout.max_model_len
    monkeypatch.setattr(session_module, "encode_prompt", lambda *_: list(range(longest - 1)))
    session: Any = SimpleNamespace(
        cascade=CASCADE, prompt_room=no_limit, layout=CASCADE.layout(CASCADE.stages[0]), seed=1, tokenizer=range(9)
    )
    probes = Session._probe_ids(session)
    assert {len(ids) for ids in probes} == {longest - 1}  # vLLM computes a token more
    assert probes[0][: longest - 17] == list(range(16, longest - 1))
