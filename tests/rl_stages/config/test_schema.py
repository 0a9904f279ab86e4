"""Upgrades: new, renamed and retired keys and other defaults, seen from runs that are older than they are.

The table of `rl_stages/config/schema.py` gets a number that could be the next one.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from yaml import safe_load

from cascade_rl.engine.core.rollouts import Sampling
from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.differences import differences
from cascade_rl.rl_stages.config.grpo_stage import EpochFilter, Extension, GrpoStage
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.config.schema import CHANGES, Change
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.config.text import to_yaml
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.stage_graph import content_hashes
from cascade_rl.rl_stages.run.upgrade.recorded import Reader, read_cascade, recorded_yaml
from tests.rl_stages.run.test_run_folder import CASCADE, finish, labels

NEXT = max(CHANGES) + 1
SFT, RL = CASCADE.stages
assert isinstance(RL, GrpoStage)


@dataclass(frozen=True, kw_only=True)
class NewerOptimizer(OptimizerConfig):
    new_option: bool = False


@dataclass(frozen=True, kw_only=True)
class NewerStage(GrpoStage):
    new_option: bool = False


def with_rl(stage: Stage) -> Cascade:
    return replace(CASCADE, stages=(SFT, stage))


def change(monkeypatch: pytest.MonkeyPatch, **tables: Any) -> None:
    monkeypatch.setitem(CHANGES, NEXT, Change(**tables))


def values(node: Any) -> dict[str, Any]:
    return {item.name: getattr(node, item.name) for item in fields(node)}


def test_a_new_key_at_its_default_changes_no_hash() -> None:
    newer = NewerStage(**values(RL))
    assert content_hashes(with_rl(newer)) == content_hashes(CASCADE)
    assert content_hashes(with_rl(replace(newer, new_option=True)))["rl"] != content_hashes(CASCADE)["rl"]
    inside = replace(RL, optimizer=NewerOptimizer(**values(RL.optimizer)))
    assert content_hashes(with_rl(inside)) == content_hashes(CASCADE)


def test_a_finished_stage_of_before_a_key_is_left_alone(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "tiny", CASCADE) as (run, _):
        finish(run.stage("sft"))
        finish(run.stage("rl"))
    with RunFolder.claim(run.root, with_rl(NewerStage(**values(RL)))) as (again, _):
        assert again.stage("rl").done
    assert labels(run.root / "superseded") == []


def test_only_what_is_not_default_is_hashed() -> None:
    assert differences(RL) == {
        "name": "rl",
        "domain": "math",
        "data": ["generate:math"],
        "steps": 4,
        "token_budget": 512,
        "sampling": {"max_new_tokens": 24},
    }
    rich = replace(
        RL,
        optimizer=OptimizerConfig(lr=1e-5),
        epoch_filter=EpochFilter(),
        extensions=(Extension(from_step=2, max_new_tokens=32),),
        reward_model=RewardModel(kind="engine", model="sft", max_tokens=8),
        sampling=Sampling(max_new_tokens=49_152),
    )
    assert {name: value for name, value in differences(rich).items() if name not in differences(RL)} == {
        "optimizer": {"lr": 1e-5},
        "epoch_filter": {},
        "extensions": [{"from_step": 2, "max_new_tokens": 32}],
        "reward_model": {"kind": "engine", "model": "sft", "max_tokens": 8},
    }


def test_the_default_of_a_node_is_that_of_the_stage_and_not_that_of_its_class() -> None:
    given = {"weight_decay": 0.0, "betas": [0.9, 0.95], "lr": 3e-6, "schedule": "constant", "warmup_steps": 0}
    assert differences(replace(SFT, optimizer=OptimizerConfig()))["optimizer"] == given | {"min_lr": 0.0}
    default = SftStage(name="sft", domain="math", data=SFT.data, steps=3, token_budget=512)
    assert differences(replace(default, optimizer=replace(default.optimizer, lr=5e-5))) == differences(default)


def test_a_renamed_key_keeps_its_hash_and_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = replace(RL, max_draws=5)
    before = to_yaml(stage).replace("max_draws", "draws")
    change(monkeypatch, renamed={"GrpoStage.draws": "max_draws"})
    assert (differences(stage)["draws"], "max_draws" in differences(stage)) == (5, False)
    reader = Reader({}, since=NEXT - 1)
    assert reader.read(safe_load(before), Stage)["max_draws"] == 5
    assert (reader.unknown, reader.lost) == ({}, {})
    reader = Reader({}, since=NEXT)
    assert reader.read(safe_load(before), Stage)["max_draws"] == GrpoStage.max_draws
    assert reader.unknown == {"rl.draws": 5}


def test_another_default_changes_the_hash_of_who_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if max_draws had been 5 by default, OptimizerConfig.eps 1e-6, and the learning rate of RL 1e-6."""
    change(
        monkeypatch,
        before={"GrpoStage.max_draws": 5, "OptimizerConfig.eps": 1e-6, "OnPolicyStage.optimizer.lr": 1e-6},
    )
    assert differences(RL)["max_draws"] == 10
    assert differences(RL)["optimizer"] == {"lr": 3e-6, "eps": 1e-8}
    assert differences(SFT)["optimizer"] == {"eps": 1e-8}
    meant = replace(RL, max_draws=5, optimizer=replace(RL.optimizer, lr=1e-6, eps=1e-6))
    assert {"max_draws", "optimizer"}.isdisjoint(differences(meant))


def test_what_an_older_run_leaves_open_has_the_value_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    older = {key: value for key, value in safe_load(to_yaml(RL)).items() if key != "max_draws"}
    change(monkeypatch, before={"GrpoStage.max_draws": 5})
    assert Reader({}, since=NEXT - 1).read(older, Stage)["max_draws"] == 5
    assert Reader({}, since=NEXT).read(older, Stage)["max_draws"] == 10


def test_a_retired_key_is_accepted_where_it_had_the_value_that_holds_now(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, retired={"Stage.gone": 3})
    for value, lost in ((3, {}), (4, {"rl.gone": 4})):
        reader = Reader({}, since=NEXT - 1)
        assert "gone" not in reader.read(safe_load(to_yaml(RL)) | {"gone": value}, Stage)
        assert (reader.unknown, reader.lost) == ({}, lost)
    assert "gone" not in differences(RL)  # 3 was the default
    change(monkeypatch, retired={"Stage.gone": 3}, before={"Stage.gone": 4})
    assert differences(RL)["gone"] == 3


def test_a_run_with_keys_that_nobody_knows_is_read_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cascade.yaml"
    path.write_text(recorded_yaml(CASCADE).replace("  keep_checkpoints: 2\n", "  keep_checkpoints: 2\n  speed: 3\n"))
    assert read_cascade(path) == CASCADE
    warning = "warning: {}: unknown key '{}.speed', which is 3 there, is ignored\n"
    assert capsys.readouterr().err == warning.format(path, "sft") + warning.format(path, "rl")


def test_a_new_key_of_the_evaluation_refuses_no_run(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "tiny", CASCADE) as (run, _):
        pass
    path = run.root / "cascade.yaml"
    before, key, after = path.read_text().rpartition("  max_infrastructure_failures: 0.1\n")
    older = before + after
    assert key
    assert older.count("max_infrastructure_failures") == 1  # that of the RL stage
    path.write_text(older)
    with RunFolder.claim(run.root, CASCADE):
        pass
