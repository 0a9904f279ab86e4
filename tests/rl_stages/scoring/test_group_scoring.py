"""From verdicts to advantages: groups, masks, and the rules that a stage may have."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from cascade_rl.engine.core.rollouts import Outcome, Rollout, Sampling
from cascade_rl.rl_stages.config.grpo_stage import CodeSwitch, GrpoStage
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.recipes import cascade2
from cascade_rl.rl_stages.rewards.swe.patch import Edit, edit_text
from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff
from cascade_rl.rl_stages.rewards.verifiers.swe_agentless import SweAgentlessVerifier
from cascade_rl.rl_stages.scoring.group_scoring import has_signal, pass_rate, score_groups
from cascade_rl.rl_stages.scoring.scored_sample import Sample, outcomes

TASK = Task("math-1", "math", ({"role": "user", "content": "What is 3 + 4?"},), {})
RIGHT, WRONG = Verdict.scored(1.0), Verdict.scored(0.0)
TRUNCATED = Verdict(Outcome.TRUNCATED, 0.0)
BROKEN = Verdict.infrastructure_failure("worker died")
MIXED = [RIGHT, WRONG, Verdict.wrong_format("no box"), RIGHT]
STAGE = GrpoStage(name="rl", domain="math", data=("x",), steps=1, token_budget=64, sampling=Sampling(max_new_tokens=8))
ROLLOUT = Rollout("a", np.arange(3), np.arange(2), np.zeros(2, np.float32), None, ((0, 0),), "stop")


def scored(verdicts: list[Verdict], stage: GrpoStage = STAGE, texts: list[str] | None = None) -> list[Sample]:
    """One group whose answers get these verdicts."""
    answers = list(zip(texts or [""] * len(verdicts), verdicts, strict=True))
    (group,) = score_groups(stage, [TASK], [[ROLLOUT] * len(verdicts)], [answers])
    return group


def advantages(group: list[Sample]) -> list[float]:
    return [sample.advantage for sample in group]


def normalized(rewards: list[float]) -> np.ndarray:
    values = np.array(rewards)
    return (values - values.mean()) / (values.std(ddof=1) + 1e-6)


def test_advantages_are_normalized_inside_each_group() -> None:
    group = scored(MIXED)
    assert np.allclose(advantages(group), normalized([1, 0, 0, 1]))
    assert all(sample.trained for sample in group)


def test_groups_do_not_mix() -> None:
    tasks = [replace(TASK, id=name) for name in ("easy", "hard")]
    answers = [[("", RIGHT)] * 3, [("", WRONG)] * 2]
    groups = score_groups(STAGE, tasks, [[ROLLOUT] * 3, [ROLLOUT] * 2], answers)
    assert [[sample.task.id for sample in group] for group in groups] == [["easy"] * 3, ["hard"] * 2]
    assert [advantages(group) for group in groups] == [[0.0] * 3, [0.0] * 2]
    assert not any(map(has_signal, groups))


def test_an_infrastructure_failure_is_masked_and_does_not_count_as_reward_0() -> None:
    group = scored([*MIXED, BROKEN])
    assert [sample.trained for sample in group] == [True] * 4 + [False]
    assert np.allclose(advantages(group), [*normalized([1, 0, 0, 1]), 0])
    assert outcomes(group)["reward"] == 0.5
    assert outcomes(group)["infrastructure_failure_fraction"] == 0.2


def test_an_overlong_answer_is_penalized_or_leaves_the_loss() -> None:
    penalized = scored([*MIXED, TRUNCATED])
    assert penalized[4].trained
    assert np.allclose(advantages(penalized), normalized([1, 0, 0, 1, 0]))
    filtered = scored([*MIXED, TRUNCATED], replace(STAGE, overlong="filter"))
    assert not filtered[4].trained
    assert np.allclose(advantages(filtered), [*normalized([1, 0, 0, 1]), 0])


def test_a_group_has_signal_when_its_trained_rewards_differ() -> None:
    assert has_signal(scored([RIGHT, WRONG]))
    assert has_signal(scored([RIGHT, TRUNCATED]))
    assert not has_signal(scored([RIGHT, TRUNCATED], replace(STAGE, overlong="filter")))
    assert not has_signal(scored([RIGHT, BROKEN]))


def test_a_pass_rate_counts_truncated_answers_and_no_failures() -> None:
    assert pass_rate(scored([RIGHT, TRUNCATED, BROKEN, BROKEN], replace(STAGE, overlong="filter"))) == 0.5
    assert pass_rate(scored([BROKEN, BROKEN])) is None


@pytest.mark.parametrize(("best", "trained"), [(0.5, False), (0.51, True)])
def test_a_group_without_a_good_answer_leaves_the_loss(best: float, trained: bool) -> None:
    group = scored([Verdict.scored(best), WRONG, BROKEN], replace(STAGE, min_best_reward=0.5))
    assert [sample.trained for sample in group] == [trained, trained, False]
    assert has_signal(group) == trained
    assert not has_signal(scored([BROKEN, BROKEN], replace(STAGE, min_best_reward=0.5)))


UNPARSABLE = replace(STAGE, wrong_format_reward=-1.0)


def test_garbage_is_worse_than_a_patch_that_changes_nothing() -> None:
    """Agentless SWE by Eq. 2 of arXiv 2512.13607: unparsable -1, no change 0, golden 1. Scores stay in [0, 1]."""
    stage = replace(STAGE, wrong_format_reward=cascade2.CASCADE2["swe_agentless_rl"]["wrong_format_reward"])
    files = {"a.py": "x = 1\n"}
    repair = {"files": files, "gold_patch": unified_diff(files, {"a.py": "x = 2\n"})}
    task = replace(TASK, domain="swe_agentless", metadata=repair)
    patches = ["x = 2", edit_text(Edit("a.py", "x = 1", "x = 1")), edit_text(Edit("a.py", "x = 1", "x = 2"))]
    with closing(SweAgentlessVerifier()) as verifier:
        group = scored([verifier(task, text) for text in patches], stage)
    assert [sample.reward for sample in group] == [-1.0, 0.0, 1.0]
    assert np.allclose(advantages(group), normalized([-1, 0, 1]))
    assert [sample.verdict.score for sample in group] == [0.0, 0.0, 1.0]
    assert pass_rate(group) == pytest.approx(1 / 3)
    assert group[0].reward_parts == {"score": 0.0, "wrong_format": 1.0}


def test_an_answer_that_is_cut_off_has_no_format() -> None:
    group = scored([WRONG, TRUNCATED, BROKEN, RIGHT], UNPARSABLE)
    assert [sample.reward for sample in group] == [0.0, -1.0, None, 1.0]
    filtered = scored([WRONG, TRUNCATED, RIGHT], replace(UNPARSABLE, overlong="filter"))
    assert [sample.trained for sample in filtered] == [True, False, True]


def test_the_rules_of_a_stage_with_a_reward_below_0() -> None:
    """A best reward and a pass rate are as before; garbage beside wrong answers is a signal."""
    garbage = Verdict.wrong_format("no patch")
    assert has_signal(scored([garbage, WRONG], UNPARSABLE))
    assert not has_signal(scored([garbage, TRUNCATED], UNPARSABLE))
    assert pass_rate(scored([garbage, garbage], UNPARSABLE)) == 0.0
    strict = replace(UNPARSABLE, min_best_reward=0.5)
    assert [sample.trained for sample in scored([garbage, Verdict.scored(0.5)], strict)] == [False, False]
    assert [sample.trained for sample in scored([garbage, Verdict.scored(0.6)], strict)] == [True, True]
    both = replace(UNPARSABLE, code_switch=CodeSwitch(reward=-10.0, relative_to="lowest"))
    assert [sample.reward for sample in scored([garbage, WRONG, RIGHT], both, ["", "", "好"])] == [-1.0, 0.0, -11.0]


def test_a_switched_answer_has_the_reward_of_the_rule_and_keeps_its_verdict() -> None:
    stage = replace(STAGE, code_switch=CodeSwitch(reward=-1.0))
    group = scored([RIGHT, RIGHT, WRONG, BROKEN], stage, ["7", "答案 7", "8", "九"])
    assert [sample.reward for sample in group] == [1.0, -1.0, 0.0, None]
    assert np.allclose(advantages(group), [*normalized([1, -1, 0]), 0])
    assert group[1].verdict.score == 1.0
    assert group[1].reward_parts == {"score": 1.0, "code_switch": 1.0}
    assert group[0].reward_parts == {}
    assert outcomes(group)["reward"] == 0.0
    assert pass_rate(group) == pytest.approx(2 / 3)


def test_the_rule_of_rlhf_is_10_below_the_lowest_reward_of_the_whole_batch() -> None:
    stage = replace(STAGE, code_switch=CodeSwitch(reward=-10.0, relative_to="lowest"))
    answers = [[("好", Verdict.scored(0.9)), ("fine", Verdict.scored(0.8))], [("poor", Verdict.scored(0.25))] * 2]
    first, second = score_groups(stage, [TASK] * 2, [[ROLLOUT] * 2] * 2, answers)
    assert [sample.reward for sample in first] == [-9.75, 0.8]
    assert [sample.reward for sample in second] == [0.25, 0.25]
