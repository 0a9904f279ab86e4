"""Converts rows of public benchmarks, as they are published, to rows of our domains.

AIME, HMMT (MathArena)      problem, answer
GPQA                        Question, Correct Answer, Incorrect Answer 1 to 3
MMLU-Pro                    question, options, answer_index
MMLU, MMLU-Redux            question, choices, answer
IFEval, IFBench             prompt, instruction_id_list, kwargs
HumanEval                   prompt, entry_point, test
LiveCodeBench               question_content, starter_code, public_test_cases, private_test_cases

A row's own fields tell its benchmark. Rows in NeMo-Gym's form are read as they are.
"""

from __future__ import annotations

import io
import pickle
import random
import string
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.data.released import converter_of, instruction_following, maths, task_row
from cascade_rl.rl_stages.data.rows import Row, read_rows
from cascade_rl.rl_stages.tasks.load_tasks import parse_task
from cascade_rl.rl_stages.tasks.row_form import GYM, OWN

CHOICE_INSTRUCTION = "Reason step by step, and put the letter of your choice within \\boxed{}."
CODE_INSTRUCTION = "Write a correct Python program in one ```python block."
STDIN = "It reads its input from stdin and prints its answer."
STARTED = "Complete this code:"
TESTS_MIB = 1024  # of the tests of one row, decompressed


def benchmark_tasks(source: str, name: str) -> Iterator[Task]:
    """The tasks of a benchmark's rows, but for those that its publishers mark as wrong, for which a converter gives
    None. Raises UserError, with the location, for a row of no known form."""
    for number, (where, row) in enumerate(read_rows(source)):
        try:
            converted = row if row.keys() & set(GYM) else converter_of(row, FORMS, "a benchmark")(row)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        if converted is not None:
            yield parse_task(converted, where, f"{name}-{number:06d}", OWN)


def _maths(row: Row) -> Row:
    return maths({**row, "answer": str(row["answer"])})


def _gpqa(row: Row) -> Row:
    """The order of the options is drawn from the question, so that it is the same in every run."""
    right = row["Correct Answer"].strip()
    options = [right, *(row[f"Incorrect Answer {number}"].strip() for number in (1, 2, 3))]
    random.Random(row["Question"]).shuffle(options)
    return _choice(row["Question"], options, options.index(right))


def _mmlu_pro(row: Row) -> Row:
    return _choice(row["question"], row["options"], row["answer_index"])


def _mmlu(row: Row) -> Row | None:
    return _choice(row["question"], row["choices"], row["answer"]) if row.get("error_type", "ok") == "ok" else None


def _choice(question: str, options: Sequence[str], right: int) -> Row:
    by_letter = dict(zip(string.ascii_uppercase, options, strict=False))
    shown = "\n".join(f"{letter}: {option}" for letter, option in by_letter.items())
    return task_row(
        "mcqa",
        f"{question}\n\n{shown}\n\n{CHOICE_INSTRUCTION}",
        options=[{letter: option} for letter, option in by_letter.items()],
        expected_answer=string.ascii_uppercase[right],
    )


def _human_eval(row: Row) -> Row:
    return task_row("code", f"{CODE_INSTRUCTION} {STARTED}\n\n```python\n{row['prompt']}```", **row)


def _livecodebench(row: Row) -> Row:
    starter = row["starter_code"]
    how = f"{STARTED}\n\n```python\n{starter}\n```" if starter else STDIN
    tests = {name: _tests(row[name]) for name in ("public_test_cases", "private_test_cases")}
    question = f"{row['question_content']}\n\n{CODE_INSTRUCTION} {how}"
    return task_row("code", question, metadata=row.get("metadata"), **tests)


def _tests(published: str) -> str:
    """JSON text. Private tests are published as a compressed pickle of it, which is read without running anything."""
    if published.lstrip().startswith("["):
        return published
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(b64decode(published, validate=True), TESTS_MIB << 20)
        return str(_Text(io.BytesIO(content)).load())
    except (ValueError, zlib.error, EOFError, pickle.UnpicklingError) as error:
        raise UserError(
            "expected 'private_test_cases' to be JSON, or JSON in a pickle in zlib in base64; found "
            f"{published[:40]!r} ({error})"
        ) from None


class _Text(pickle.Unpickler):
    """Of a pickle that holds text alone."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it would run {module}.{name}")


FORMS: dict[tuple[str, ...], Callable[[Row], Row | None]] = {
    ("problem", "answer"): _maths,
    ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"): _gpqa,
    ("question", "options", "answer_index"): _mmlu_pro,
    ("question", "choices", "answer"): _mmlu,
    ("prompt", "instruction_id_list", "kwargs"): instruction_following,
    ("prompt", "entry_point", "test"): _human_eval,
    ("question_content", "starter_code", "public_test_cases", "private_test_cases"): _livecodebench,
}
