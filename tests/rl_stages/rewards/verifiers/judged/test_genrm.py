import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.rewards.verifiers.judged.genrm import JudgementVerifier, parse_row

TASK = Task("t", "genrm", ({"role": "user", "content": "q"},), {"score_1": 5, "score_2": 1, "ranking": 1})


@pytest.mark.parametrize(("judged", "score"), [((5, 1, 1), 1.0), ((4, 3, 2), 1 - 4 / 13), ((1, 5, 6), 0.0)])
def test_the_score_falls_with_the_distance(judged: tuple[int, int, int], score: float) -> None:
    reply = '{{"score_1": {}, "score_2": {}, "ranking": {}}}'.format(*judged)
    assert JudgementVerifier()(TASK, reply).score == pytest.approx(score)


def test_an_unreadable_judgement_is_a_wrong_format() -> None:
    assert JudgementVerifier()(TASK, "5 : 1").outcome is Outcome.WRONG_FORMAT


@pytest.mark.parametrize(
    "change", [{"score_1": 6}, {"score_2": 0}, {"ranking": 7}, {"ranking": True}, {"ranking": "1"}]
)
def test_rows_that_cannot_be_read_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(UserError, match="whole number"):
        parse_row({"score_1": 5, "score_2": 1, "ranking": 1, **change})
