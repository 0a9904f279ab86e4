"""What ends a stage before its last step: the numbers that decide, on all ranks alike, and after a kill as before."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
import yaml

from cascade_rl.engine.backend.process_groups import join_ranks
from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.report.collect import collect
from cascade_rl.launchers.report.status import status_table
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.stage import LengthClip, Plateau
from cascade_rl.rl_stages.config.text import from_plain, override, to_yaml
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.stage_graph import content_hashes
from cascade_rl.rl_stages.run.step_log import StepLog
from cascade_rl.rl_stages.run.stop_rule import early_stop, has_rule
from cascade_rl.rl_stages.session import Session
from tests.gloo import run_ranks
from tests.launchers.report.test_status import text
from tests.rl_stages.run.test_run_folder import CASCADE

SFT, RL = CASCADE.stages


def stage(**rules: object) -> GrpoStage:
    return replace(RL, steps=10, checkpoint_every=3, **rules)  # type: ignore[type-var]


def ends_after(rules: GrpoStage, metric: str, values: list[float]) -> int | None:
    """The first step after which it ends."""
    rows = [{"step": step, "reward": 0.5, metric: value} for step, value in enumerate(values, start=1)]
    stops = [early_stop(rules, rows[:count]) for count in range(len(rows) + 1)]
    return next((stop.step for stop in stops if stop), None)


def test_a_plateau_is_two_windows_whose_means_are_too_close() -> None:
    flat = stage(stop_at_plateau=Plateau(window=2, gain=0.25))
    assert ends_after(flat, "reward", [0.0, 0.0, 0.25, 0.25]) is None  # 0.25 against 0: the gain itself
    assert ends_after(flat, "reward", [0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]) == 7  # 1.0 against 0.875
    assert ends_after(flat, "reward", [1.0, 1.0, 1.0]) is None  # no second window yet
    rows = [{"step": step, "reward": value} for step, value in enumerate([0.0, 0.5, 0.25, 0.5], start=1)]
    stop = early_stop(flat, rows)
    assert stop and (stop.rule, stop.numbers) == ("plateau", {"before": 0.25, "after": 0.375, "gain": 0.125})
    assert stop.reason == (
        "plateau: mean reward 0.375 over the last 2 steps, 0.25 over the 2 before; a gain of 0.25 was expected"
    )


def test_a_metric_may_get_better_by_falling() -> None:
    falling = stage(stop_at_plateau=Plateau(window=1, gain=0.25, metric="reverse_kl", better="lower"))
    assert ends_after(falling, "reverse_kl", [2.0, 1.0, 0.75, 0.625]) == 4


def test_steps_without_the_metric_are_no_part_of_a_window() -> None:
    rows = [{"step": 1, "reward": 0.5}, {"step": 2, "length": 9.0}, {"step": 3, "reward": 0.5}]
    stop = early_stop(stage(stop_at_plateau=Plateau(window=1, gain=0.1)), rows)
    assert stop and stop.step == 3


@pytest.mark.parametrize(
    ("side", "values", "step"),
    [
        ("above", [0.3, 0.1, 0.2, 0.3], 4),  # the second is not above
        ("above", [0.2, 0.1, 0.2, 0.1], None),
        ("below", [0.3, 0.15, 0.09, 0.08], 4),
        ("below", [0.09], None),
    ],
)
def test_length_clip_is_a_share_beyond_its_rate_in_every_step_of_a_window(
    side: str, values: list[float], step: int | None
) -> None:
    clip = LengthClip(rate=0.1, window=2, side=side)  # type: ignore[arg-type]
    assert ends_after(stage(stop_at_length_clip=clip), "truncated_fraction", values) == step


def test_without_a_rule_a_stage_takes_all_its_steps() -> None:
    assert not has_rule(SFT) and not has_rule(RL)
    assert has_rule(RULED.stages[1])
    assert early_stop(RL, [{"step": 1, "reward": 0.0}]) is None


def test_a_metric_that_no_step_has_is_told_with_the_nearest() -> None:
    rules = stage(stop_at_plateau=Plateau(window=1, gain=0.1, metric="rewards"))
    with pytest.raises(UserError, match=r"stop_at_plateau\.metric: .* found 'rewards'\. Did you mean 'reward'\?"):
        early_stop(rules, [{"step": 1, "reward": 0.5}])


def test_rules_are_keys_like_any_other_and_part_of_the_hash() -> None:
    rules = {"stop_at_plateau": Plateau(window=2, gain=0.25), "stop_at_length_clip": LengthClip(rate=0.1, window=2)}
    ruled = replace(CASCADE, stages=(SFT, stage(**rules)))
    assert from_plain(yaml.safe_load(to_yaml(ruled))) == ruled
    other = override(ruled, ["rl.stop_at_plateau.gain=0.5"])
    differing = {name for name, digest in content_hashes(other).items() if digest != content_hashes(ruled)[name]}
    assert differing == {"rl"}
    with pytest.raises(UserError, match=r"Did you mean 'rl\.stop_at_plateau\.window'"):
        override(ruled, ["rl.stop_at_plateau.windows=3"])
    with pytest.raises(UserError, match="LengthClip has no key 'bound'"):
        LengthClip(bound=0.1, window=2)  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"stop_at_plateau\.window: expected at least 1, found 0"):
        Plateau(window=0, gain=0.1)


# Through the verbs of a loop.

RULED = replace(CASCADE, stages=(SFT, stage(stop_at_plateau=Plateau(window=2, gain=0.01))))
REWARDS = [0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.5, 0.6, 0.7]  # steps 6 and 7 gain nothing over 4 and 5


class StepsOnly(Session[GrpoStage]):
    """A session that has nothing but steps."""

    def __init__(self, folder: StageFolder, log: StepLog | None) -> None:
        self.folder, self.stage, self.log = folder, folder.config, log  # type: ignore[assignment]
        self.checkpoints = SimpleNamespace(poll=lambda: None, finish=lambda: None)  # type: ignore[assignment]
        self.first_step = self.folder.last_step()

    def _save(self, step: int) -> None:
        if dist.get_rank() == 0:
            self.folder.begin_checkpoint(step)
            self.folder.commit_checkpoint(step)


def attempt(root: Path, killed_in: int = 99) -> list[int]:
    """The steps that this rank takes; the step `killed_in` is logged, and then all ranks are gone."""
    join_ranks()
    folder = RunFolder(root, RULED).stage("rl")
    if dist.get_rank() == 0:
        folder.restart()
    dist.barrier()
    with StepLog(folder) if dist.get_rank() == 0 else nullcontext() as log:
        taken = []
        for step in (session := StepsOnly(folder, log)).steps():
            taken.append(step + 1)
            if dist.get_rank() == 0:
                session.folder.record_step(step + 1, {"reward": REWARDS[step]}, {"update": 1.0}, tokens=1)
            if step + 1 == killed_in:
                break
        return taken


@pytest.fixture
def folder(tmp_path: Path) -> StageFolder:
    with RunFolder.claim(tmp_path / "run", RULED) as (run, _):
        return run.stage("rl")


def test_all_ranks_end_after_the_same_step_and_the_stage_is_done(folder: StageFolder) -> None:
    root = folder.root.parents[1]
    assert run_ranks(2, attempt, root) == [[1, 2, 3, 4, 5, 6, 7]] * 2
    assert folder.checkpoint_steps() == [6, 7]
    (event,) = [event for event in folder.events.rows() if event["event"] == "early_stop"]
    assert (event["step"], event["rule"]) == (7, "plateau")
    assert event["numbers"] == pytest.approx({"before": 0.4, "after": 0.4, "gain": 0.0})
    for when in ("before", "after"):
        folder.record_scores(when, {"math": 0.5})
    folder.export.mkdir()
    folder.finish()
    assert folder.done and folder.summary().steps == 7
    run = RunFolder(root, RULED, recorded=True)
    assert "7/10 (plateau)" in text(status_table(run))
    assert collect(run)["stages"][1]["ended"].startswith("plateau: mean reward 0.4 over the last 2 steps")
    assert run_ranks(2, attempt, root) == [[], []]  # nothing is left to do


def test_a_killed_stage_ends_where_it_would_have_ended(folder: StageFolder) -> None:
    root = folder.root.parents[1]
    assert run_ranks(1, attempt, root, 5) == [[1, 2, 3, 4, 5]]
    assert run_ranks(1, attempt, root, 7) == [[4, 5, 6, 7]]  # killed before the checkpoint that ends it
    assert folder.checkpoint_steps() == [3, 6] and folder.early_stop is None
    assert run_ranks(1, attempt, root) == [[7]]
    assert folder.early_stop and folder.early_stop["step"] == 7
