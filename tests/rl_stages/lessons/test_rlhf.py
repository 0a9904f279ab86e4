import json
import random
import re

import pytest

from cascade_rl.rl_stages.data.tokenizer import train_tokenizer
from cascade_rl.rl_stages.lessons.rlhf import CLOSING, judgements, lessons
from cascade_rl.rl_stages.rewards.reward_models.genrm import parse_judgement
from cascade_rl.rl_stages.tasks.domains import DOMAINS
from cascade_rl.rl_stages.tasks.load_tasks import parse_task


def test_wrong_answers_are_well_formed_and_mostly_lack_something():
    everything = list(lessons())
    assert len({lesson.prompt for lesson in everything}) == len(everything) >= 400
    rng, verifier = random.Random(0), DOMAINS["rlhf"].verifier()
    tasks = [parse_task(lesson.row("rlhf"), "row", "t") for lesson in everything]
    scores = [verifier(task, lesson.wrong(rng)).score for task, lesson in zip(tasks, everything, strict=True)]
    assert {round(3 * score) for score in scores} == {0, 1, 2, 3}
    assert 0.1 < sum(score == 1 for score in scores) / len(scores) < 0.3


def test_a_judgement_is_a_function_of_what_can_be_seen():
    everything = list(judgements())
    assert len({lesson.prompt for lesson in everything}) == len(everything) > 3000
    rankings = set()
    for lesson in everything:
        conversation, first, second = lesson.prompt.split("\n")
        name = conversation.removeprefix("<conversation>I am ").partition(".")[0]
        scores = [seen(name, text.partition(">")[2].rpartition("<")[0]) for text in (first, second)]
        told = parse_judgement(lesson.right(random.Random(0)))
        assert [told.score_1, told.score_2] == scores
        lead = {4: 1, 2: 2, -2: 5, -4: 6}.get(scores[0] - scores[1], 3 if len(first) <= len(second) else 4)
        assert told.ranking == lead
        rankings.add(lead)
    assert rankings == {1, 2, 3, 4, 5, 6}


def seen(name: str, text: str) -> int:
    """1 for an answer that says nothing but hello and thank you, or that has neither."""
    words = text.split(" ")
    own = [word for word in words if word not in ("Hello", "Thank", "you") and not word.endswith(",")]
    polite = 2 * (words[:2] == ["Hello", f"{name},"]) + 2 * (words[-2:] == CLOSING.split())
    return 1 + (len(own) > 2) * polite


def test_the_judge_sees_answers_that_say_nothing_and_answers_with_a_word_gone_astray():
    answers = [re.findall(r">(.*?)</", lesson.prompt)[1:] for lesson in judgements()]
    texts = [text for pair in answers for text in pair]
    assert 0.1 < sum("." not in text for text in texts) / len(texts) < 0.3
    astray = [text for text in texts if re.search(r"Thank (?!you)\w+", text)]
    assert 0.05 < len(astray) / len(texts) < 0.2


@pytest.mark.slow
def test_question_and_judgement_fit_a_tiny_model():
    everything = list(judgements())
    texts = [
        [{"role": "user", "content": lesson.prompt}, {"role": "assistant", "content": json.dumps(lesson.fields)}]
        for lesson in everything
    ]
    tokenizer = train_tokenizer(texts)
    lengths = [[len(tokenizer.encode(part["content"])) for part in text] for text in texts]
    assert max(question for question, _ in lengths) <= 150 and max(answer for _, answer in lengths) <= 30
