"""The run folder: refusals that change nothing, resume, records."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome, Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, RolloutConfig
from cascade_rl.rl_stages.config.base import BaseModel, Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import Extension, GrpoStage
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.stage import LengthClip
from cascade_rl.rl_stages.config.text import override
from cascade_rl.rl_stages.core import hub
from cascade_rl.rl_stages.run import run_folder
from cascade_rl.rl_stages.run.durable_file import JsonLines, write_atomically
from cascade_rl.rl_stages.run.run_folder import CACHE_VARIABLE, RunFolder, StageFolder
from cascade_rl.rl_stages.run.sample_record import SampleRecord, read_samples, write_samples
from cascade_rl.rl_stages.run.stage_graph import digest
from cascade_rl.rl_stages.run.upgrade.hash_file import write_hash
from cascade_rl.rl_stages.run.upgrade.kept_folders import Agree

CASCADE = Cascade(
    name="tiny",
    base=BaseModel(hf_config={"hidden_size": 64}),
    rollout=RolloutConfig(max_model_len=64),
    evaluation=Evaluation(domains=("math",), prompts_per_domain=8, max_new_tokens=24),
    stages=(
        SftStage(name="sft", domain="math", data=("generate:math",), steps=3, token_budget=512),
        GrpoStage(
            name="rl",
            domain="math",
            data=("generate:math",),
            steps=4,
            token_budget=512,
            sampling=Sampling(max_new_tokens=24),
        ),
    ),
)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    with RunFolder.claim(tmp_path / "tiny", CASCADE) as (folder, _):
        return folder


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def keep_step(stage: StageFolder, step: int) -> None:
    stage.record_step(step, {"reward": 0.1 * step, "tme": 1 + 1e-6 * step}, {"update": 0.5}, tokens=10)
    stage.begin_checkpoint(step)
    (stage.partial_checkpoint(step) / "weights").write_text(str(step))
    stage.commit_checkpoint(step)


def finish(stage: StageFolder) -> None:
    for step in range(1, stage.config.steps + 1):
        keep_step(stage, step)
    stage.record_scores("before", {"math": 0.25})
    stage.record_scores("after", {"math": 0.5})
    stage.export.mkdir()
    stage.finish()


def test_open_reads_what_claim_wrote(run: RunFolder) -> None:
    again = RunFolder.open(run.root)
    assert again.cascade == CASCADE
    assert [stage.label for stage in again.stages] == ["01_sft", "02_rl"]
    assert again.stage("rl").parent == again.stage("sft")
    assert again.stage("sft").parent is None


def test_compiled_kernels_are_the_runs_or_those_of_several(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    assert run.cache == run.root.absolute() / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, "/shared/kernels")
    assert run.cache == Path("/shared/kernels")


def test_another_configuration_is_refused_and_changes_nothing(run: RunFolder) -> None:
    before = contents(run.root)
    other = override(CASCADE, ["rl.steps=5", "seed=2", "evaluation.prompts_per_domain=9"])
    with (
        pytest.raises(UserError, match=r"evaluation\.prompts_per_domain = 8, now 9; seed = 1, now 2"),
        RunFolder.claim(run.root, other),
    ):
        pass
    assert contents(run.root) == before


def test_a_bound_of_the_evaluation_may_change(run: RunFolder) -> None:
    keep_step(run.stage("rl"), 1)
    with RunFolder.claim(run.root, override(CASCADE, ["evaluation.max_infrastructure_failures=0.5"])) as (again, _):
        assert again.stage("rl").last_step() == 1


def labels(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*"))


def asked(into: list[str]) -> Agree:
    """Agrees to everything, and keeps what was said."""
    return lambda changed: into.extend(f"{item.fate}: {item}" for item in changed)


def test_a_changed_stage_is_put_aside_and_taken_back_when_the_change_is_undone(run: RunFolder) -> None:
    keep_step(run.stage("sft"), 1)
    keep_step(run.stage("rl"), 1)
    old, said = run.stage("rl").content_hash[:8], list[str]()
    with RunFolder.claim(run.root, override(CASCADE, ["rl.optimizer.lr=1e-5"]), agree=asked(said)) as (changed, _):
        assert said == ["runs again: 02_rl (at step 1): rl.optimizer.lr 3e-06 -> 1e-05"]
        assert changed.stage("rl").last_step() == 0
        assert changed.stage("sft").last_step() == 1
        assert labels(run.root / "superseded") == [f"02_rl-{old}"]
    with RunFolder.claim(run.root, CASCADE) as (again, _):
        assert (again.stage("sft").last_step(), again.stage("rl").last_step()) == (1, 1)
        (aside,) = labels(run.root / "superseded")
        assert aside == f"02_rl-{changed.stage('rl').content_hash[:8]}"


def test_what_depends_on_a_changed_stage_runs_again_too(run: RunFolder) -> None:
    keep_step(run.stage("sft"), 1)
    keep_step(run.stage("rl"), 1)
    said = list[str]()
    with RunFolder.claim(run.root, override(CASCADE, ["sft.optimizer.lr=1e-4"]), agree=asked(said)) as (changed, _):
        assert said == [
            "runs again: 01_sft (at step 1): sft.optimizer.lr 5e-05 -> 0.0001",
            "runs again: 02_rl (at step 1): its parent 01_sft",
        ]
        assert [stage.last_step() for stage in changed.stages] == [0, 0]
        assert len(labels(run.root / "superseded")) == 2


def test_work_is_not_set_aside_unless_somebody_agrees(run: RunFolder) -> None:
    keep_step(run.stage("rl"), 1)
    before = contents(run.root)
    with (
        pytest.raises(UserError, match=r"02_rl \(at step 1\): rl\.optimizer\.lr 3e-06 -> 1e-05\n.*--rerun rl:"),
        RunFolder.claim(run.root, override(CASCADE, ["rl.optimizer.lr=1e-5"])),
    ):
        pass
    assert contents(run.root) == before


def test_what_has_no_work_in_it_is_set_aside_without_asking(run: RunFolder) -> None:
    with RunFolder.claim(run.root, override(CASCADE, ["sft.optimizer.lr=1e-4"])) as (changed, _):
        assert len(labels(run.root / "superseded")) == 2
        assert [stage.last_step() for stage in changed.stages] == [0, 0]


def test_a_finished_folder_is_taken_back_without_asking(run: RunFolder) -> None:
    finish(run.stage("rl"))
    with RunFolder.claim(run.root, override(CASCADE, ["rl.optimizer.lr=1e-5"]), agree=asked([])) as (changed, _):
        keep_step(changed.stage("rl"), 1)
    said = list[str]()
    with RunFolder.claim(run.root, CASCADE, agree=asked(said)) as (again, _):
        assert said == ["is taken back: 02_rl (at step 1): rl.optimizer.lr 1e-05 -> 3e-06"]
        assert again.stage("rl").done


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (["rl.optimizer.lr=1e-5"], "rl.optimizer.lr 3e-06 -> 1e-05"),
        (["rollout.dtype=bfloat16"], "rollout.dtype float32 -> bfloat16; its parent 01_sft"),
        (["parallel.precision=bfloat16"], "parallel.precision float32 -> bfloat16; its parent 01_sft"),
        (["rl.parent=base"], "its parent base"),
    ],
)
def test_what_changed_is_said(run: RunFolder, change: list[str], reason: str) -> None:
    keep_step(run.stage("rl"), 1)
    assert [str(item) for item in RunFolder(run.root, override(CASCADE, change)).changed()] == [
        f"02_rl (at step 1): {reason}"
    ]


def test_changed_data_are_said(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}")
    on_file = replace(CASCADE, stages=(CASCADE.stages[0], replace(CASCADE.stages[1], data=(str(rows),))))
    with RunFolder.claim(tmp_path / "tiny", on_file) as (run, _):
        keep_step(run.stage("rl"), 1)
    rows.write_text("{ }")
    assert [item.reasons for item in RunFolder(run.root, on_file).changed()] == [(f"its data {rows}",)]


def test_a_stage_that_the_cascade_lost_is_not_set_aside_in_silence(run: RunFolder) -> None:
    keep_step(run.stage("rl"), 1)
    shorter = replace(CASCADE, stages=CASCADE.stages[:1])
    with pytest.raises(UserError, match="the cascade has no such stage"), RunFolder.claim(run.root, shorter):
        pass


def test_a_stage_that_moves_to_another_place_keeps_its_work(run: RunFolder) -> None:
    keep_step(run.stage("sft"), 1)
    keep_step(run.stage("rl"), 1)
    branch = replace(CASCADE.stages[0], name="branch", steps=2, parent="base")
    moved = replace(CASCADE, stages=(CASCADE.stages[0], branch, replace(CASCADE.stages[1], parent="sft")))
    with RunFolder.claim(run.root, moved) as (again, _):
        assert [(stage.label, stage.last_step()) for stage in again.stages] == [
            ("01_sft", 1),
            ("02_branch", 0),
            ("03_rl", 1),
        ]
        assert not (run.root / "superseded").exists() or labels(run.root / "superseded") == []


JUDGE = RewardModel(kind="server", model="judge", url="http://one:8000/v1")
FALLING = OptimizerConfig(lr=3e-6, schedule="linear")
LATE = Extension(from_step=2, max_new_tokens=32)


def with_rl(**keys: Any) -> Cascade:
    return replace(CASCADE, stages=(CASCADE.stages[0], replace(CASCADE.stages[1], **keys)))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, {"token_budget": 256}, "rl.token_budget 512 -> 256"),
        ({}, {"tme_bound": 1.01}, "rl.tme_bound 1.001 -> 1.01"),
        ({}, {"max_infrastructure_failures": 0.5}, "rl.max_infrastructure_failures 0.1 -> 0.5"),
        ({}, {"max_draws": 20}, "rl.max_draws 10 -> 20"),
        ({}, {"steps": 9}, "rl.steps 4 -> 9"),
        ({}, {"steps": 2}, "rl.steps 4 -> 2"),
        ({}, {"stop_at_length_clip": LengthClip(rate=0.1, window=2)}, "rl.stop_at_length_clip None -> absent; "),
        ({}, {"extensions": (LATE,)}, "rl.extensions [] -> [{'from_step': 2"),
        ({"optimizer": replace(FALLING, schedule_steps=9)}, {"steps": 9}, "rl.steps 4 -> 9"),
        ({"optimizer": FALLING}, {"token_budget": 256}, "rl.token_budget 512 -> 256"),
        (
            {"reward_model": JUDGE},
            {"reward_model": replace(JUDGE, url="http://two/v1")},
            "rl.reward_model.url http://o",
        ),
    ],
)
def test_what_changes_no_finished_step_goes_on(
    tmp_path: Path, before: Mapping[str, Any], after: Mapping[str, Any], said: str
) -> None:
    told = list[str]()
    with RunFolder.claim(tmp_path / "run", with_rl(**before)) as (run, _):
        keep_step(run.stage("rl"), 1)
        keep_step(run.stage("rl"), 2)
    with RunFolder.claim(run.root, with_rl(**{**before, **after}), agree=asked(told)) as (again, _):
        assert told[0].startswith(f"goes on: 02_rl (at step 2): {said}")
        assert (len(told), again.stage("rl").last_step()) == (1, 2)
        assert not (run.root / "superseded").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"optimizer": FALLING}, {"steps": 9}),
        ({}, {"steps": 1}),
        ({}, {"extensions": (replace(LATE, from_step=1),)}),
        ({}, {"reward_model": JUDGE}),
        ({}, {"sequence_error_bound": 2.0}),
        ({}, {"min_answer_tokens": 2}),
    ],
)
def test_what_changes_a_finished_step_is_asked_about(
    tmp_path: Path, before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    with RunFolder.claim(tmp_path / "run", with_rl(**before)) as (run, _):
        keep_step(run.stage("rl"), 1)
        keep_step(run.stage("rl"), 2)
    held = contents(run.root / "stages")
    with (
        pytest.raises(UserError, match=r"(?s)02_rl \(at step 2\): rl\..*--rerun rl"),
        RunFolder.claim(run.root, with_rl(**{**before, **after})),
    ):
        pass
    assert contents(run.root / "stages") == held


def with_sft(**keys: Any) -> Cascade:
    return replace(CASCADE, stages=(replace(CASCADE.stages[0], **keys), CASCADE.stages[1]))


def test_where_sft_drops_what_is_too_long_the_budget_says_what_is_learned(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "run", with_sft(overlong="drop")) as (run, _):
        keep_step(run.stage("sft"), 1)
    with (
        pytest.raises(UserError, match=r"sft\.token_budget 512 -> 256"),
        RunFolder.claim(run.root, with_sft(overlong="drop", token_budget=256)),
    ):
        pass


def test_a_validation_loss_is_added_to_a_stage_that_has_begun(tmp_path: Path) -> None:
    (tmp_path / "validation.jsonl").write_text("{}")
    said = list[str]()
    with RunFolder.claim(tmp_path / "run", CASCADE) as (run, _):
        keep_step(run.stage("sft"), 1)
    measured = with_sft(heldout=(str(tmp_path / "validation.jsonl"),), validate_every=2)
    with RunFolder.claim(run.root, measured, agree=asked(said)) as (again, _):
        assert len(said) == 1 and said[0].startswith("goes on: 01_sft (at step 1): sft.")
        assert again.stage("sft").last_step() == 1


def test_another_commit_of_data_on_the_hub_is_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = {"openai/gsm8k": "one"}
    monkeypatch.setattr(hub, "_commit", lambda repository, revision: commits[repository])
    cascade = with_rl(data=("hf:openai/gsm8k*0.5",))
    with RunFolder.claim(tmp_path / "run", cascade) as (run, _):
        keep_step(run.stage("rl"), 1)
    with RunFolder.claim(run.root, cascade):
        pass
    commits["openai/gsm8k"] = "two"
    told = pytest.raises(UserError, match=r"02_rl \(at step 1\): its data hf:openai/gsm8k\*0\.5")
    with told, RunFolder.claim(run.root, cascade):
        pass


def test_a_folder_of_before_knows_data_of_the_hub_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_commit", lambda repository, revision: "one")
    cascade, source = with_rl(data=("hf:openai/gsm8k",)), "hf:openai/gsm8k"
    with RunFolder.claim(tmp_path / "run", cascade) as (run, _):
        keep_step(run.stage("rl"), 1)
        rl = run.stage("rl")
        assert rl.identity
        write_hash(rl.root, replace(rl.identity, data={source: digest(source)}), same_weights=False)
    with RunFolder.claim(run.root, cascade) as (again, _):
        assert again.stage("rl").last_step() == 1


def test_a_stage_keeps_the_name_by_which_others_know_it(run: RunFolder) -> None:
    """The hash of a parent changes, and neither its child nor what was set aside of it is asked about."""
    finish(run.stage("sft"))
    finish(run.stage("rl"))
    with RunFolder.claim(run.root, with_rl(sampling=Sampling(max_new_tokens=20)), agree=asked([])):
        pass
    for budget in (256, 128):
        said = list[str]()
        changed = with_sft(token_budget=budget)
        with RunFolder.claim(run.root, changed, agree=asked(said)) as (again, _):
            assert all(stage.done for stage in again.stages)
        assert not [line for line in said if line.startswith("runs again")]


def test_a_finished_stage_with_a_later_end_is_opened_again(run: RunFolder) -> None:
    finish(run.stage("sft"))
    finish(run.stage("rl"))
    said = list[str]()
    with RunFolder.claim(run.root, override(CASCADE, ["rl.steps=6"]), agree=asked(said)) as (again, _):
        assert said == ["goes on: 02_rl (done): rl.steps 4 -> 6"]
        rl = again.stage("rl")
        assert (rl.done, rl.last_step(), list(rl.scores())) == (False, 4, ["before"])
    with RunFolder.claim(run.root, CASCADE) as (back, _):  # at step 4 of 4: it only ends again
        assert (back.stage("rl").done, back.stage("rl").last_step()) == (False, 4)


def test_what_depends_on_a_longer_stage_is_asked_about(run: RunFolder) -> None:
    finish(run.stage("sft"))
    keep_step(run.stage("rl"), 1)
    longer = override(CASCADE, ["sft.optimizer.schedule=constant", "sft.steps=3"])
    with RunFolder.claim(run.root, longer, agree=asked([])) as (constant, _):
        finish(constant.stage("sft"))
        keep_step(constant.stage("rl"), 1)
    with (
        pytest.raises(UserError, match=r"02_rl \(at step 1\): its parent 01_sft\nNothing was moved"),
        RunFolder.claim(run.root, override(longer, ["sft.steps=5"])),
    ):
        pass
    assert constant.stage("sft").done


def test_a_stop_rule_reopens_only_a_stage_that_a_rule_ended(tmp_path: Path) -> None:
    rule = LengthClip(rate=0.1, window=2)
    with RunFolder.claim(tmp_path / "run", with_rl(stop_at_length_clip=rule)) as (run, _):
        finish(run.stage("rl"))
    with RunFolder.claim(run.root, CASCADE) as (whole, _):
        assert whole.stage("rl").done  # it had run to its last step
    with RunFolder.claim(tmp_path / "other", with_rl(stop_at_length_clip=rule)) as (run, _):
        keep_step(run.stage("rl"), 1)
        (run.stage("rl").root / "done").touch()
    with RunFolder.claim(run.root, CASCADE) as (reopened, _):
        assert (reopened.stage("rl").done, reopened.stage("rl").last_step()) == (False, 1)


def test_how_a_stage_is_run_can_change_under_it(run: RunFolder) -> None:
    keep_step(run.stage("rl"), 1)
    with RunFolder.claim(run.root, override(CASCADE, ["rl.checkpoint_every=2", "nproc=2"])) as (again, _):
        assert again.stage("rl").last_step() == 1
        assert again.stage("rl").config.checkpoint_every == 2


def test_a_folder_of_somebody_else_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with (
        pytest.raises(UserError, match=r"found other files \(thesis.txt\)"),
        RunFolder.claim(tmp_path, CASCADE),
    ):
        pass
    assert contents(tmp_path) == {"thesis.txt": b"years of work"}
    with pytest.raises(UserError, match="found none"):
        RunFolder.open(tmp_path)


def test_a_second_launcher_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "LOCK_PATIENCE_S", 0.1)
    with (
        RunFolder.claim(tmp_path / "tiny", CASCADE),
        pytest.raises(UserError, match="another launcher"),
        RunFolder.claim(tmp_path / "tiny", CASCADE),
    ):
        pass
    with RunFolder.claim(tmp_path / "tiny", CASCADE) as (again, _):
        assert again.cascade == CASCADE


def test_the_lock_is_held_until_inheritors_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "LOCK_PATIENCE_S", 0.1)
    with RunFolder.claim(tmp_path / "tiny", CASCADE) as (_, descriptor):
        inherited = os.dup(descriptor)
    with pytest.raises(UserError, match="another launcher"), RunFolder.claim(tmp_path / "tiny", CASCADE):
        pass
    os.close(inherited)
    with RunFolder.claim(tmp_path / "tiny", CASCADE):
        pass


def test_restart_goes_back_to_the_newest_complete_checkpoint(run: RunFolder) -> None:
    stage = run.stage("rl")
    for step in (1, 2):
        keep_step(stage, step)
    kept = stage.metrics.path.read_bytes()
    stage.record_step(3, {"reward": 0.9}, {"update": 0.5}, tokens=10)
    stage.begin_checkpoint(3)
    (stage.partial_checkpoint(3) / "weights").write_text("half")
    with stage.metrics.path.open("ab") as file:
        file.write(b'{"step": 4, "rew')
    assert stage.restart() == 2
    assert stage.metrics.path.read_bytes() == kept
    assert [path.name for path in sorted((stage.root / "checkpoints").iterdir())] == [
        "step_00001",
        "step_00002",
    ]
    assert [event["step"] for event in stage.events.rows()] == [1, 2, 3]


def test_only_the_newest_checkpoints_are_kept(run: RunFolder) -> None:
    stage = run.stage("rl")
    for step in range(1, 5):
        keep_step(stage, step)
    assert stage.checkpoint_steps() == [3, 4]
    assert (stage.checkpoint(4) / "weights").read_text() == "4"


def test_metrics_have_no_times_and_every_bit(run: RunFolder) -> None:
    stage = run.stage("rl")
    stage.record_step(1, {"loss": np.float64(1) / 3, "count": np.int64(7)}, {"update": 0.5}, tokens=10)
    assert stage.metrics.path.read_text() == '{"step": 1, "loss": 0.3333333333333333, "count": 7.0}\n'
    (event,) = stage.events.rows()
    assert (event["seconds"], event["tokens"]) == ({"update": 0.5}, 10)


def test_a_metric_that_is_no_number_is_an_error(run: RunFolder) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        run.stage("rl").record_step(1, {"loss": float("nan")}, {}, tokens=0)
    assert run.stage("rl").metrics.rows() == []


def test_no_file_of_a_run_has_nan(run: RunFolder) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        run.stage("rl").record_scores("before", {"math": float("nan")})
    assert run.stage("rl").scores() == {}


def test_a_row_is_on_the_disk_before_its_checkpoint_is(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was synced, in order: a checkpoint that survives a loss of power has its rows."""
    stage, synced, fsync = run.stage("rl"), list[tuple[str, int]](), os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        synced.append((os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")), os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", watched)
    keep_step(stage, 1)
    sizes = {path.name: path.stat().st_size for path in (stage.metrics.path, stage.events.path)}
    names = [name for name, _ in synced]
    assert names == ["metrics.jsonl", stage.label, "events.jsonl", stage.label, "checkpoints"]
    assert all(size == sizes.get(name, size) for name, size in synced)


def test_a_torn_line_is_dropped(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    log.append({"a": 1})
    with log.path.open("ab") as file:
        file.write(b'{"a": 2, "b"')
    assert log.rows() == [{"a": 1}]
    log.append({"a": 3})
    assert log.path.read_text() == '{"a": 1}\n{"a": 3}\n'
    log.path.write_bytes(b'{"a"')
    log.append({"a": 4})
    assert log.rows() == [{"a": 4}]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    (tmp_path / ".file.tmp").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(path, "new")
    assert path.read_text() == "old"


def test_finish_needs_everything_a_stage_leaves(run: RunFolder) -> None:
    stage = run.stage("sft")
    with pytest.raises(ValueError, match="missing before, after, checkpoint of step 3, export"):
        stage.finish()
    for step in (1, 2, 3):
        keep_step(stage, step)
    stage.record_scores("before", {"math": 0.25})
    stage.record_scores("after", {"math": 0.5})
    stage.export.mkdir()
    assert not stage.done
    stage.finish()
    assert stage.done


def test_summary_and_lineage(run: RunFolder) -> None:
    stage = run.stage("sft")
    stage.record_event("attempt", from_step=0)
    finish(stage)
    run.record()
    (summary,) = json.loads((run.root / "summary.json").read_text())["stages"]
    assert summary.pop("seconds") >= 0
    assert summary == {
        "name": "sft",
        "domain": "math",
        "before": {"math": 0.25},
        "after": {"math": 0.5},
        "steps": 3,
        "tme_max": 1.000003,
        "replay_fraction_min": None,
        "validation_loss": None,
    }
    lineage = json.loads((run.root / "lineage.json").read_text())
    assert lineage["stages"][0]["parent_hashes"] == [lineage["base"]]
    assert lineage["stages"][0]["checkpoint"] == "stages/01_sft/checkpoints/step_00003"


def test_seconds_are_those_of_all_attempts_without_the_pauses(run: RunFolder) -> None:
    stage = run.stage("sft")
    for moment, event in [(10, "attempt"), (14, "step"), (100, "attempt"), (101, "step"), (103, "ended")]:
        stage.events.append({"time": moment, "event": event})
    assert stage.seconds() == 7


def test_hash_follows_what_changes_the_weights(tmp_path: Path) -> None:
    def hashes(*settings: str) -> list[str]:
        return [stage.content_hash for stage in RunFolder(tmp_path, override(CASCADE, settings)).stages]

    sft, rl = hashes()
    assert hashes("name=other", "nproc=2") == [sft, rl]
    assert hashes("rl.steps=5")[0] == sft
    assert hashes("rl.steps=5")[1] != rl
    for setting in ("sft.steps=5", "seed=2", "base.hf_config.hidden_size=32"):
        assert set(hashes(setting)).isdisjoint({sft, rl})


def test_samples_come_back_from_parquet(run: RunFolder) -> None:
    sample = SampleRecord(
        id="s1",
        task_id="t1",
        domain="math",
        prompt_ids=np.array([1, 2, 3]),
        token_ids=np.array([4, 5]),
        rollout_logprobs=np.array([-0.5, -1.25], dtype=np.float32),
        train_logprobs=np.array([-0.5, -1.5], dtype=np.float32),
        loss_mask=np.array([True, False]),
        reward=1.0,
        advantage=0.75,
        outcome=Outcome.COMPLETED,
        finish="stop",
        versions=((3, 0), (4, 1)),
        text="4 = \\boxed{4}",
        reward_parts={"answer": 1.0},
        teacher_logprobs=np.array([-0.25, -2.0], dtype=np.float32),
    )
    failed = replace(sample, id="s2", reward=None, outcome=Outcome.INFRASTRUCTURE_FAILURE, reward_parts={})
    failed = replace(failed, generated=np.array([True, False]), turns=2)
    path = run.stage("rl").rollouts(12)
    write_samples(path, [sample, failed])
    first, second = read_samples(path)
    assert path.name == "step_00012.parquet"
    assert first == {
        "id": "s1",
        "task_id": "t1",
        "domain": "math",
        "prompt_ids": [1, 2, 3],
        "token_ids": [4, 5],
        "rollout_logprobs": [-0.5, -1.25],
        "train_logprobs": [-0.5, -1.5],
        "loss_mask": [True, False],
        "reward": 1.0,
        "advantage": 0.75,
        "outcome": "completed",
        "finish": "stop",
        "versions": [[3, 0], [4, 1]],
        "text": "4 = \\boxed{4}",
        "detail": "",
        "reward_parts": [("answer", 1.0)],
        "teacher_logprobs": [-0.25, -2.0],
        "thinking": None,
        "generated": None,
        "turns": 1,
    }
    assert (second["reward"], second["outcome"]) == (None, "infrastructure_failure")
    assert (second["generated"], second["turns"]) == ([True, False], 2)
