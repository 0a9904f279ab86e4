"""The judge of an evaluation: what needs one, and that it is the server which is named."""

import argparse
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.evaluate.judges import check_judged, judge_of, judged_domains, makers
from cascade_rl.launchers.rehearse.stand_in_judge import stand_in_judge
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import GroupVerifier

NEEDLE = Task("n", "long_context", (), {"long_context_kind": "needle", "expected_answer": ["blue"]})
FREE = Task("f", "long_context", (), {"long_context_kind": "qa", "expected_answer": "blue", "question": "Which?"})
OPEN = Task("o", "rlhf", (), {"principle": None})
RULED = Task("r", "rlhf", (), {"principle": None, "instruction_id_list": ["x"]})
SUM = Task("s", "math", (), {"expected_answer": "4"})
JUDGE = RewardModel(kind="server", url="http://judge/v1", model="m")


@pytest.mark.parametrize(
    ("task", "judge", "message"),
    [
        (NEEDLE, None, ""),
        (SUM, None, ""),
        (RULED, None, ""),
        (FREE, JUDGE, ""),
        (FREE, None, "f: expected a judge, which scores free answers of long_context by their meaning; found none"),
        (OPEN, JUDGE, "o: expected answers that are scored one by one; found a row of rlhf without rules"),
    ],
)
def test_what_nobody_can_score_is_refused(task: Task, judge: RewardModel | None, message: str) -> None:
    if not message:
        return check_judged([SUM, task], judge)
    with pytest.raises(UserError, match=message):
        check_judged([SUM, task], judge)


def test_the_named_server_judges_the_domains_that_ask_for_one() -> None:
    def options(**said: Any) -> argparse.Namespace:
        return argparse.Namespace(judge_key_env=None, **said)

    assert judge_of(options(judge_url=None, judge_model=None)) is None
    domains = judged_domains([FREE, OPEN, SUM])
    assert domains == {"long_context"}
    assert makers(domains, None) == {}
    with stand_in_judge() as url:
        [make] = makers(domains, judge_of(options(judge_url=url, judge_model="stand-in"))).values()
        verifier = make()
        assert not isinstance(verifier, GroupVerifier)
        verdict = verifier(FREE, "It is of a blue colour.")
        verifier.close()
    assert verdict.score in (0.0, 1.0) and verdict.detail == "by the judge"
