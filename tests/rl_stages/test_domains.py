import random

import pytest

from cascade_rl.engine.errors import UserError
from cascade_rl.rl_stages.domains import DOMAINS, domain_named
from cascade_rl.rl_stages.task import parse_task


def test_each_domain_scores_its_own_right_answers():
    for domain in DOMAINS.values():
        verifier = domain.verifier()
        for lesson in list(domain.lessons())[:50]:
            task = parse_task(lesson.row(domain.name), "row", "t")
            assert verifier(task, lesson.right(random.Random(0))).score == 1.0
            assert verifier(task, "").score == 0.0
        verifier.close()


def test_an_unknown_domain_names_the_nearest():
    with pytest.raises(UserError, match="found 'maths'; did you mean 'math'"):
        domain_named("maths")
