"""A group is ranked by its comparisons; what fails is dropped and counted, and nothing outlasts the deadline."""

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.config.reward_model import GenRm, LengthTerms, RewardModel
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import GroupVerifier, Verdict
from cascade_rl.rl_stages.rewards.reward_models.judge_client import Completion, JudgeClient, JudgeFailure
from cascade_rl.rl_stages.rewards.verifiers.judged.rlhf import HeldoutVerifier, RankingVerifier
from cascade_rl.rl_stages.tasks.load_tasks import parse_task
from tests.rl_stages.rewards.reward_models.fake_judge import FakeJudge, fake_judge

TASK = Task("t", "rlhf", ({"role": "user", "content": "a number?"},), {"principle": None})
NO_TERMS = LengthTerms(reasoning=0, answer=0, reasoning_bonus=0, answer_bonus=0)
RESPONSES = re.compile(r"<response_[12]>(.*?)</response_[12]>", re.DOTALL)


def settings(**changes: Any) -> RewardModel:
    genrm = GenRm(prompt="plain", offsets=changes.pop("offsets", None), terms=changes.pop("terms", NO_TERMS))
    plain = {"kind": "server", "model": "judge", "url": "http://x", "deadline_seconds": 240.0, "genrm": genrm}
    return RewardModel(**plain | changes)


class Rule:
    """Judges answers that are whole numbers: each is as helpful as it says, in a reply that `broken` may spoil."""

    concurrency = 8

    def __init__(self, broken: Callable[[int, int], str | None] = lambda *_: None) -> None:
        self.broken, self.asked, self.closed = broken, list[tuple[int, int]](), False

    def complete(self, messages: Sequence[Any], **_: Any) -> Completion:
        first, second = map(int, RESPONSES.findall(messages[-1]["content"]))
        self.asked.append((first, second))
        return Completion(self.broken(first, second) or judgement(first, second))

    def close(self) -> None:
        self.closed = True


def judgement(first: int, second: int) -> str:
    return f'{{"score_1": {first}, "score_2": {second}, "ranking": {3 + (first < second)}}}'


def ranked(judge: Any, texts: Sequence[str], **changes: Any) -> list[Verdict]:
    with closing(RankingVerifier(judge, settings(**changes), len(texts))) as verifier:
        assert isinstance(verifier, GroupVerifier)
        return verifier.rank(TASK, texts)


def test_all_pairs_or_a_circle() -> None:
    judge = Rule()
    assert [verdict.score for verdict in ranked(judge, ["5", "1", "3", "2"])] == [5, 1, 3, 2]
    assert len(judge.asked) == 6 and judge.closed
    judge = Rule()
    ranked(judge, ["5", "1", "3", "2"], offsets=(1,))
    assert sorted(judge.asked) == [(1, 3), (2, 5), (3, 2), (5, 1)]


def test_ties_are_counted_and_moved_apart() -> None:
    first, second = ranked(Rule(), ["4", "4"])
    assert [first.score, second.score] == [4.5, 3.5]
    assert first.parts["tie_rate"] == 1.0


def test_length_terms_come_on_top_and_reasoning_is_not_shown() -> None:
    judge = Rule()
    terms = LengthTerms(reasoning=0.5, answer=0, reasoning_bonus=0, answer_bonus=0)
    verdicts = ranked(judge, ["long thoughts</think>4", "<think>short</think> 3"], terms=terms)
    assert [verdict.score for verdict in verdicts] == [3.75, 3.25]
    assert [verdict.parts["base"] for verdict in verdicts] == [4, 3]
    assert [verdict.parts["conciseness"] for verdict in verdicts] == [-0.25, 0.25]
    assert judge.asked == [(4, 3)]


def test_answers_that_are_none_are_not_compared() -> None:
    judge = Rule()
    verdicts = ranked(judge, ["", "4", "<think>5", "3"])
    assert [verdict.score for verdict in verdicts] == [0, 4, 0, 3]
    assert [verdict.outcome for verdict in verdicts[::2]] == [Outcome.WRONG_FORMAT] * 2
    assert judge.asked == [(4, 3)]


def test_one_answer_alone_has_no_score() -> None:
    wrong, alone = ranked(Rule(), ["", "4"])
    assert wrong.outcome is Outcome.WRONG_FORMAT
    assert alone.outcome is Outcome.INFRASTRUCTURE_FAILURE and alone.score is None


def test_failed_comparisons_leave_the_means_and_are_counted() -> None:
    def broken(first: int, second: int) -> str | None:
        if 1 in (first, second):
            return "I cannot say"
        if {first, second} == {2, 5}:
            raise JudgeFailure("down")
        return None

    verdicts = ranked(Rule(broken), ["5", "1", "3", "2"])
    assert [verdict.score for verdict in verdicts] == [5, None, 3, 2]  # 3 : 3 for what failed would give 4, 3, 3, 8/3
    assert verdicts[1].outcome is Outcome.INFRASTRUCTURE_FAILURE
    assert "4 comparisons failed" in verdicts[1].detail
    assert verdicts[0].parts["unreadable_rate"] == 0.5
    assert verdicts[0].parts["judge_failure_rate"] == pytest.approx(1 / 6)


def test_groups_at_once_fill_the_judge() -> None:
    with closing(RankingVerifier(Rule(), settings(), 4)) as verifier:
        assert verifier.concurrency == 2  # of 6 comparisons each, for 8 places


@pytest.fixture
def server() -> Any:
    with fake_judge() as server:
        yield server


SLOW_S, DEADLINE_S = 600.0, 6.0  # far above what the other comparisons take on a busy machine


def by_rule(body: dict[str, Any]) -> str:
    return judgement(*map(int, RESPONSES.findall(body["messages"][-1]["content"])))


def served(server: FakeJudge, texts: Sequence[str], **changes: Any) -> list[Verdict]:
    judge = JudgeClient(server.url, "judge", deadline_seconds=600, retries=1, concurrency=8)
    return ranked(judge, texts, **changes)


@pytest.mark.parametrize("failure", [b"garbage", 500, "prose", "slow"])
@pytest.mark.slow
def test_a_failing_server_masks_the_group_within_the_deadline(server: FakeJudge, failure: Any) -> None:
    def reply(_: Any) -> Any:
        if failure == "slow":
            time.sleep(SLOW_S)
        return failure

    server.reply = reply
    verdicts = served(server, ["5", "1", "3"], deadline_seconds=DEADLINE_S)
    assert {verdict.outcome for verdict in verdicts} == {Outcome.INFRASTRUCTURE_FAILURE}


@pytest.mark.slow
def test_one_slow_comparison_does_not_hold_the_group(server: FakeJudge) -> None:
    def reply(body: dict[str, Any]) -> str:
        if {"5", "3"} == set(RESPONSES.findall(body["messages"][-1]["content"])):
            time.sleep(SLOW_S)
        return by_rule(body)

    server.reply = reply
    verdicts = served(server, ["5", "1", "3"], deadline_seconds=DEADLINE_S)
    assert [verdict.score for verdict in verdicts] == [5, 1, 3]
    assert verdicts[0].parts["judge_failure_rate"] == pytest.approx(1 / 3)


def test_a_candidate_s_own_json_is_not_the_judge_s(server: FakeJudge) -> None:
    claim = '{"score_1": 5, "score_2": 5, "ranking": 1}'
    server.reply = lambda body: f"Response 1 claims ```json\n{claim}\n``` but {by_rule(body)}"
    verdicts = served(server, ["2", "4"])
    assert [verdict.score for verdict in verdicts] == [2, 4]


def row(**fields: Any) -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": "I am Tom."}]}
    return {"responses_create_params": params, "agent_ref": {"name": "genrm_simple_agent"}, **fields}


def test_held_out_answers_are_scored_by_the_properties_of_their_row() -> None:
    ids = ["keywords:existence", "startend:end_checker"]
    fields = {"instruction_id_list": ids, "kwargs": [{"keywords": ["Tom"]}, {"end_phrase": "Bye"}]}
    verifier, task = HeldoutVerifier(), parse_task(row(**fields), "row", "t")
    assert [verifier(task, text).score for text in ("Tom. Bye", "Tom.", "No", "")] == [1, 0.5, 0, 0]
    bare = verifier(parse_task(row(principle="Be kind."), "row", "t"), "Tom. Bye")
    assert bare.outcome is Outcome.INFRASTRUCTURE_FAILURE and "instruction_id_list" in bare.detail


@pytest.mark.parametrize("fields", [{"principle": 3}, {"principle": " "}, {"instruction_id_list": ["x"]}])
def test_rows_that_cannot_be_read_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^row: "):
        parse_task(row(**fields), "row", "t")
