"""A stage that cannot learn says so, with its numbers."""

from dataclasses import replace

import pytest

from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.scoring.nothing_learned import nothing_learned
from tests.rl_stages.scoring.test_group_scoring import BROKEN, RIGHT, STAGE, TRUNCATED, WRONG, scored

SCORING = replace(STAGE, score_truncated=True)
CUT_RIGHT = replace(TRUNCATED, score=1.0)
CUT = (
    "all 4 answers were cut off, which without score_truncated is a score of 0 (max_new_tokens = 8, overlong = penalty)"
)
NOTHING = "nothing is learned: none of 2 groups has unequal rewards"


@pytest.mark.parametrize(
    ("stage", "verdicts", "said"),
    [
        (STAGE, [TRUNCATED, TRUNCATED], f"{CUT}; {NOTHING}, which are from 0 to 0"),
        (STAGE, [RIGHT, RIGHT], f"{NOTHING}, which are from 1 to 1"),
        (STAGE, [BROKEN, BROKEN], NOTHING),
        (SCORING, [TRUNCATED, CUT_RIGHT], "all 4 answers were cut off (max_new_tokens = 8, overlong = penalty)"),
        (STAGE, [TRUNCATED, RIGHT], None),
        (STAGE, [WRONG, RIGHT], None),
    ],
)
def test_it_is_said_with_numbers(stage: GrpoStage, verdicts: list[Verdict], said: str | None) -> None:
    told = nothing_learned(stage, [scored(verdicts, stage), scored(verdicts, stage)])
    assert told == (said and f"{said}. See docs/symptoms/reward_flat.md")
