from contextlib import closing

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.reward_models.judge_client import JudgeFailure
from cascade_rl.rl_stages.rewards.swe.patch import Edit, edit_text
from cascade_rl.rl_stages.rewards.swe.unified_diff import unified_diff
from cascade_rl.rl_stages.rewards.verifiers.swe_agentless import SweAgentlessVerifier, parse_row

FILES = {"a.py": "def f(n):\n    return n + 1\n"}
GOLD = unified_diff(FILES, {"a.py": "def f(n):\n    return n + 2\n"})
ROW = {"files": FILES, "gold_patch": GOLD}
TASK = Task("1", "swe_agentless", ({"role": "user", "content": "f(1) must be 3"},), parse_row(ROW))


def patch(line: str) -> str:
    return edit_text(Edit("a.py", "    return n + 1", line))


class FakeJudge:
    concurrency = 7

    def __init__(self, yes: float | None, neither: float = 0.0) -> None:
        self.yes, self.neither, self.asked, self.closed = yes, neither, [], False

    def choose(self, messages, words, *, behind, max_tokens):
        assert (words, behind) == (("YES", "NO"), "<judgement>")
        self.asked.append((messages[-1]["content"], max_tokens))
        if self.yes is None:
            raise JudgeFailure("down")
        return self.yes, 1 - self.yes - self.neither

    def close(self):
        self.closed = True


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "outcome", "score"),
    [
        (patch("    return n + 2"), Outcome.COMPLETED, 1.0),
        (f"<think>{patch('x')}</think>{patch('    return n + 2')}", Outcome.COMPLETED, 1.0),
        (patch("    return n + 3"), Outcome.COMPLETED, 0.0),
        (patch("    return n + 1"), Outcome.COMPLETED, 0.0),
        (edit_text(Edit("a.py", "    return m", "    return n + 2")), Outcome.WRONG_FORMAT, 0.0),
        (edit_text(Edit("b.py", "    return n + 1", "    return n + 2")), Outcome.WRONG_FORMAT, 0.0),
        ("return n + 2", Outcome.WRONG_FORMAT, 0.0),
        (f"<think>{patch('    return n + 2')}", Outcome.WRONG_FORMAT, 0.0),
        (patch("    return n + 2" + " " * 200_000), Outcome.WRONG_FORMAT, 0.0),
        ("", Outcome.WRONG_FORMAT, 0.0),
    ],
)
@pytest.mark.parametrize("judge", [None, FakeJudge(1e-9)])
def test_unparsable_no_op_golden_and_other_patches(text, outcome, score, judge):
    with closing(SweAgentlessVerifier(judge)) as verifier:
        verdict = verifier(TASK, text)
    assert verdict.outcome is outcome and verdict.score == pytest.approx(score, abs=1e-6)


@pytest.mark.process
def test_the_judge_is_asked_only_about_what_is_not_golden_and_gives_its_probability():
    judge = FakeJudge(0.8)
    with closing(SweAgentlessVerifier(judge, max_tokens=99)) as verifier:
        assert verifier.concurrency == 7
        assert verifier(TASK, patch("    return n + 2")).score == 1.0
        assert verifier(TASK, patch("    return n + 1")).score == 0.0
        assert judge.asked == []
        assert verifier(TASK, patch("    return 2 + n")).score == pytest.approx(0.8)
    ((question, max_tokens),) = judge.asked
    assert max_tokens == 99 and judge.closed
    for part in ("f(1) must be 3", "+    return n + 2", "+    return 2 + n"):
        assert part in question


@pytest.mark.process
@pytest.mark.parametrize("judge", [FakeJudge(None), FakeJudge(0.3, neither=0.6)])
def test_a_judge_that_fails_or_says_neither_is_an_infrastructure_failure(judge):
    with closing(SweAgentlessVerifier(judge)) as verifier:
        verdict = verifier(TASK, patch("    return n + 3"))
    assert verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE and verdict.score is None


@pytest.mark.process
def test_the_similarity_of_swe_rl():
    with closing(SweAgentlessVerifier(lexical="difflib")) as verifier:
        near, far = (verifier(TASK, patch(line)) for line in ("    return n + 3", "    pass"))
    assert 0.9 < near.score < 1 and far.score < near.score
    assert near.detail.startswith("similarity of characters")


@pytest.mark.parametrize(
    "row",
    [{}, {**ROW, "files": {"../a.py": ""}}, {**ROW, "gold_patch": "x"}, {"files": {"b.py": ""}, "gold_patch": GOLD}],
)
def test_broken_rows(row):
    with pytest.raises(UserError, match="expected"):
        parse_row(row)
