"""From scored samples to training sequences: masks, where the sampler's numbers are put, when a step is refused."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cascade_rl.engine.core.rollouts import Kept, Outcome, Rollout
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.rl_stages import grpo
from cascade_rl.rl_stages.agreement import Mismatch, mask_disagreeing, require_agreement, require_replay
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.grpo import NothingToLearn
from cascade_rl.rl_stages.scoring.group_scoring import score_groups
from cascade_rl.rl_stages.scoring.scored_sample import Sample, outcomes, record

TASK = Task("math-1", "math", ({"role": "user", "content": "?"},), {})
TRUNCATED = Verdict(Outcome.TRUNCATED, 0.0)
BROKEN = Verdict.infrastructure_failure("worker died")


def rollout(generated: int, prompt: int = 3, name: str = "a") -> Rollout:
    return Rollout(
        id=name,
        prompt_ids=np.arange(10, 10 + prompt),
        token_ids=np.arange(20, 20 + generated),
        logprobs=-np.arange(1, generated + 1, dtype=np.float32),
        routes=np.arange(2 * (prompt + generated - 1), dtype=np.int16).reshape(-1, 1, 2),
        versions=((0, 0),),
        finish="stop",
    )


def scored(verdicts: list[Verdict], overlong: str = "penalty") -> list[Sample]:
    """One group whose answers get these verdicts."""
    stage: Any = SimpleNamespace(overlong=overlong, code_switch=None, min_best_reward=None, wrong_format_reward=None)
    rollouts = [rollout(2, name=str(i)) for i in range(len(verdicts))]
    answers = [(f"text {i}", verdict) for i, verdict in enumerate(verdicts)]
    (group,) = score_groups(stage, [TASK], [rollouts], [answers])
    return group


def bounded(tme: float, stale: float = 1.0) -> Any:
    """A stage with these bounds."""
    return SimpleNamespace(tme_bound=tme, stale_gap_bound=stale)


def right_and_wrong() -> list[Verdict]:
    return [Verdict.scored(1.0), Verdict.scored(0.0), Verdict.wrong_format("no box"), Verdict.scored(1.0)]


def test_position_t_of_a_sequence_predicts_token_t_plus_1() -> None:
    """3 prompt tokens, 2 answer tokens: the last prompt position predicts the first answer token."""
    sequence = Sample(TASK, rollout(2), "", Verdict.scored(1.0), 0.5, trained=True).sequence(temperature=0.7)
    assert sequence.token_ids.tolist() == [10, 11, 12, 20, 21]
    assert sequence.loss_mask.tolist() == [False, False, True, True]
    assert sequence.per_token["rollout_logprob"].tolist() == [0, 0, -1, -2]
    assert sequence.per_token["advantage"].tolist() == [0, 0, 0.5, 0.5]
    assert all(values.dtype == np.float32 for values in sequence.per_token.values())
    assert sequence.temperature == 0.7


def test_a_route_stays_with_the_position_that_took_it() -> None:
    answer = rollout(2)
    sequence = Sample(TASK, answer, "", Verdict.scored(1.0), 0.5, trained=True).sequence(1.0)
    assert sequence.routes is answer.routes
    assert len(answer.routes) == len(sequence.token_ids) - 1 == 4


def test_kept_tokens_are_those_of_the_position_that_predicts() -> None:
    answer = replace(rollout(2), kept=Kept(np.array([20, 7, 21]), np.array([2, 1])))
    sequence = Sample(TASK, answer, "", Verdict.scored(1.0), 0.5, trained=True).sequence(1.0)
    assert sequence.kept is not None
    assert sequence.kept.ids.tolist() == [20, 7, 21]
    assert sequence.kept.counts.tolist() == [0, 0, 2, 1]
    assert Sample(TASK, rollout(2), "", BROKEN).sequence(1.0).kept is None


def test_an_untrained_sample_has_no_loss_token_and_keeps_its_numbers() -> None:
    sequence = Sample(TASK, rollout(2), "", BROKEN, 0.0, trained=False).sequence(1.0)
    assert not sequence.loss_mask.any()
    assert sequence.per_token["rollout_logprob"].tolist() == [0, 0, -1, -2]


def test_outcomes_are_means_over_the_batch() -> None:
    metrics = outcomes(scored([*right_and_wrong(), TRUNCATED]))
    fractions = {outcome: metrics[f"{outcome}_fraction"] for outcome in Outcome}
    assert fractions == {"completed": 0.6, "wrong_format": 0.2, "truncated": 0.2, "infrastructure_failure": 0.0}
    assert metrics["reward"] == 0.4
    assert metrics["length"] == 2


def test_a_record_is_the_answers_part_of_the_sequence() -> None:
    sample = scored(right_and_wrong())[0]
    sequence = sample.sequence(1.0)
    train_logprobs = np.array([-9, -9, -1.5, -2.5], np.float32)
    kept = record(sample, sequence, train_logprobs)
    assert kept.token_ids.tolist() == [20, 21]
    assert kept.rollout_logprobs.tolist() == [-1, -2]
    assert kept.train_logprobs.tolist() == [-1.5, -2.5]
    assert kept.loss_mask.tolist() == [True, True]
    assert (kept.reward, kept.task_id, kept.text) == (1.0, "math-1", "text 0")


def test_the_gap_is_measured_on_loss_tokens_and_bounded() -> None:
    trained, masked = scored([Verdict.scored(1.0), BROKEN])
    sequences = [trained.sequence(1.0), masked.sequence(1.0)]
    ours = [sequence.per_token["rollout_logprob"].copy() for sequence in sequences]
    ours[0][:2] = ours[1][:] = -50  # prompts and masked samples do not matter
    ours[0][3] += 0.1
    gap = require_agreement(bounded(1.06), [trained, masked], sequences, ours, step=0)
    assert gap["tme"] == pytest.approx((1 + np.exp(0.1)) / 2, rel=1e-6)
    with pytest.raises(Mismatch, match=r"step 1: .* is 1\.05\d+, expected at most 1\.05 .*weights are unchanged"):
        require_agreement(bounded(1.05), [trained, masked], sequences, ours, step=0)


def test_a_gap_that_is_no_number_is_beyond_the_bound() -> None:
    (sample, _) = scored([Verdict.scored(1.0), Verdict.scored(0.0)])
    ours = np.array([0, 0, np.nan, -2], np.float32)
    with pytest.raises(Mismatch):
        require_agreement(bounded(1.001), [sample], [sample.sequence(1.0)], [ours], step=0)


def test_samples_with_older_weights_have_a_bound_of_their_own() -> None:
    """One sample is of the weights that learn. The other's first token is a version older, and its second has read the
    states of the first."""
    now, before = scored([Verdict.scored(1.0), Verdict.scored(0.0)])
    now = replace(now, rollout=replace(now.rollout, versions=((4, 0),)))
    before = replace(before, rollout=replace(before.rollout, versions=((3, 0), (4, 1))))
    samples, sequences = [now, before], [now.sequence(1.0), before.sequence(1.0)]
    gaps = np.array([[-50, -50, 0.1, 0.1], [-50, -50, 0.5, 0.3]], np.float32)
    ours = [sequence.per_token["rollout_logprob"] + gap for sequence, gap in zip(sequences, gaps, strict=True)]
    found = require_agreement(bounded(1.2, 0.6), samples, sequences, ours, step=4)
    assert found["tme"] == pytest.approx(np.exp(0.1), rel=1e-6)
    assert (found["stale_gap"], found["stale_max_gap"]) == pytest.approx((0.4, 0.5), rel=1e-6)
    assert (found["age"], found["age_max"]) == (0.25, 1.0)
    assert (found["age_first"], found["age_last"]) == (0.5, 0.0)
    assert (found["age_0_fraction"], found["age_1_fraction"]) == (0.75, 0.25)
    with pytest.raises(Mismatch, match=r"step 5: .* over the tokens of older weights is 0\.400 nats.*stale_gap_bound"):
        require_agreement(bounded(1.2, 0.3), samples, sequences, ours, step=4)
    with pytest.raises(Mismatch, match=r"step 5: .*\| is 1\.10.*raise tme_bound"):
        require_agreement(bounded(1.1, 0.6), samples, sequences, ours, step=4)


def test_a_step_of_older_weights_alone_is_only_bounded_as_such() -> None:
    (sample, _) = scored([Verdict.scored(1.0), Verdict.scored(0.0)])
    sequence = sample.sequence(1.0)
    gap = require_agreement(bounded(1.0, 0.1), [sample], [sequence], [sequence.per_token["rollout_logprob"]], step=1)
    assert gap == {"stale_gap": 0.0, "stale_max_gap": 0.0} | {
        "age": 1.0, "age_first": 1.0, "age_last": 1.0, "age_max": 1.0, "age_0_fraction": 0.0, "age_1_fraction": 1.0
    }  # fmt: skip


def test_a_sequence_that_disagrees_leaves_the_loss_and_is_counted() -> None:
    """Answers of 2 tokens: gaps of 0.8 and 0.6 are a mean factor of 2.02, of 0.7 and 0.6 one of 1.92."""
    samples = scored([Verdict.scored(1.0), Verdict.scored(0.0), BROKEN])
    sequences = [sample.sequence(1.0) for sample in samples]
    ours = [sequence.per_token["rollout_logprob"].copy() for sequence in sequences]
    ours[0][2:] += [0.8, -0.6]
    ours[1][2:] += [0.7, -0.6]
    ours[2][:] = -50  # has no loss token
    masked, counted = mask_disagreeing(sequences, ours, bound=2.0, step=0)
    assert [sequence.loss_mask.sum() for sequence in masked] == [0, 2, 0]
    assert counted == {"disagreeing_fraction": pytest.approx(1 / 3)}
    assert require_agreement(bounded(2.0), samples, masked, ours, step=0)["max_gap"] == pytest.approx(0.7)
    assert mask_disagreeing(sequences, ours, bound=None, step=0) == (sequences, {})
    with pytest.raises(Mismatch, match=r"step 1: expected sequences whose mean .* at most 1\.5, found none"):
        mask_disagreeing(sequences, ours, bound=1.5, step=0)


def test_a_partly_replayed_step_is_an_error() -> None:
    require_replay(1.0, 4, RolloutConfig())
    with pytest.raises(Mismatch, match=r"step 5: 0\.9990 of the experts"):
        require_replay(0.999, 4, RolloutConfig())


def test_a_stage_without_replay_needs_none() -> None:
    require_replay(0.0, 4, RolloutConfig(replay_routes=False))


def test_a_step_without_a_trained_sample_is_an_error_that_counts_why() -> None:
    samples = scored([BROKEN, BROKEN, TRUNCATED], overlong="filter")
    with pytest.raises(NothingToLearn, match=r"step 3: .*'infrastructure_failure': 2, 'truncated': 1"):
        grpo._require_trained(samples, 2)
    grpo._require_trained(scored([BROKEN, TRUNCATED]), 2)
