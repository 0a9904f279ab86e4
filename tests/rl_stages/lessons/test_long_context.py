import random
import re
from collections import Counter

from cascade_rl.rl_stages.lessons.long_context import PER_KIND, lessons
from cascade_rl.rl_stages.tasks.domains import DOMAINS
from cascade_rl.rl_stages.tasks.load_tasks import parse_task


def test_prompts_are_distinct_and_short():
    everything = list(lessons())
    assert len({lesson.prompt for lesson in everything}) == len(everything) == 3 * PER_KIND
    assert max(len(lesson.prompt.split()) for lesson in everything) <= 150
    assert set(Counter(lesson.fields["long_context_kind"] for lesson in everything).values()) == {PER_KIND}


def test_the_answer_follows_from_the_text():
    for lesson in lessons():
        asked = re.findall(r"[A-Z]\w+", lesson.prompt.rpartition(". ")[2])[1:]
        answer = lesson.right(random.Random(0))
        if lesson.fields["long_context_kind"] == "aggregation":
            assert answer == f"{asked[0]} has {lesson.prompt.count(f'{asked[0]} has a')}"
        else:
            found = [re.search(rf"key of ({name} is \w+)\.", lesson.prompt)[1] for name in asked]
            assert answer == ", ".join(found)


def test_wrong_answers_are_well_formed_and_mostly_fail():
    rng, verifier = random.Random(0), DOMAINS["long_context"].verifier()
    scores = [
        verifier(parse_task(lesson.row("long_context"), "row", "t"), lesson.wrong(rng)).score for lesson in lessons()
    ]
    assert sum(scores) / len(scores) < 0.25
