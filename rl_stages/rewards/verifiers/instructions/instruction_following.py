"""Instruction following: constraints of IFEval, IF-RLVR and IFBench that a program can check.

Rows are those of NeMo-Gym's `instruction_following` server. Everything fails closed:

- An empty or unfinished answer passes nothing (the originals pass `no_comma` and `forbidden_words` on "").
- Every keyword argument must be given; the originals choose missing ones at random (olmo-eval#296).
- An unknown constraint is an error when the row is read; Gym silently scores it 0.

Every check takes a time that is linear in the answer. Further differences are listed in `docs/verifiers.md` and at the
top of `constraints_ifeval.py`, `constraints_rlvr.py`, `constraints_ifbench.py` and `constraints_language.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.verifiers.instructions import (  # noqa: F401
    constraints_ifbench,
    constraints_ifeval,
    constraints_rlvr,
)
from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints import CHECKS, RELATIONS
from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints_language import LANGUAGES

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

GRADING_MODES = ("binary", "fraction")
READINGS = ("strict", "loose")


def follows(answer: str, instruction_id: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether a stripped answer meets one constraint. An empty one meets none."""
    return bool(answer) and CHECKS[instruction_id](answer, **kwargs)


def follows_loosely(answer: str, instruction_id: str, kwargs: Mapping[str, Any]) -> bool:
    """IFEval's loose reading: one of the variants without first line, last line or both, or asterisks must pass."""
    lines = answer.split("\n")
    texts = [answer, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return any(follows(reading, instruction_id, kwargs) for text in texts for reading in (text, text.replace("*", "")))


def _matches(value: object, annotation: str) -> bool:
    if annotation == "list[str]":
        return isinstance(value, list) and bool(value) and all(_matches(item, "str") for item in value)
    if annotation == "int":
        return type(value) is int
    return isinstance(value, str) and bool(value)


def _integral(value: object) -> object:
    """IFBench writes its whole numbers as 246.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def check_instruction(instruction_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The kwargs without nulls. UserError on an unknown id, and on a missing, unknown or mistyped kwarg."""
    if not isinstance(instruction_id, str) or instruction_id not in CHECKS:
        known = ", ".join(sorted(CHECKS))
        raise UserError(f"expected an instruction id among {known}; found {instruction_id!r}")
    given = {name: _integral(value) for name, value in kwargs.items() if value is not None}
    parameters = list(inspect.signature(CHECKS[instruction_id]).parameters.values())[1:]
    expected = {parameter.name: parameter.annotation for parameter in parameters}
    if set(given) != set(expected):
        raise UserError(f"{instruction_id}: expected kwargs {sorted(expected)}; found {sorted(given)}")
    for name, value in given.items():
        if not _matches(value, expected[name]):
            raise UserError(f"{instruction_id}: expected {name} to be of type {expected[name]}; found {value!r}")
        if name == "language" and value not in LANGUAGES:
            known = ", ".join(sorted(LANGUAGES))
            raise UserError(f"{instruction_id}: expected language to be one of {known}; found {value!r}")
        if name.endswith("relation") and value not in RELATIONS:
            raise UserError(f"{instruction_id}: expected {name} to be one of {RELATIONS}; found {value!r}")
    return given


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The verifier's fields of a NeMo-Gym row, checked: `instruction_id_list` and `kwargs`, one for each id.

    Gym's newer rows have them under `verifier_metadata`. `grading_mode` (binary or fraction) is Gym's; `reading`
    (strict or loose) is IFEval's, for evaluation.
    """
    metadata = row.get("verifier_metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise UserError(f"expected 'verifier_metadata' to be an object; found {metadata!r}")
    row = {**row, **(metadata or {})}
    ids, kwargs = row.get("instruction_id_list"), row.get("kwargs")
    if not isinstance(ids, list) or not ids:
        raise UserError(f"expected 'instruction_id_list' to be a non-empty list of ids; found {ids!r}")
    if not isinstance(kwargs, list) or len(kwargs) != len(ids) or not all(isinstance(k, dict | None) for k in kwargs):
        raise UserError(f"expected 'kwargs' to be a list of {len(ids)} objects, one for each id; found {kwargs!r}")
    checked = [check_instruction(name, given or {}) for name, given in zip(ids, kwargs, strict=True)]
    options = {"grading_mode": GRADING_MODES, "reading": READINGS}
    chosen = {name: _choice(name, row.get(name, known[0]), known) for name, known in options.items()}
    return {"instruction_id_list": ids, "kwargs": checked, **chosen}


def _choice(name: str, value: object, known: tuple[str, ...]) -> object:
    if value not in known:
        raise UserError(f"expected {name!r} to be one of {known}; found {value!r}")
    return value


class InstructionFollowingVerifier:
    """Score 1 when every constraint of the task is met, else 0; in grading mode "fraction", the share that is met.

    `parts` holds the result of each by position and id.
    """

    concurrency = 1

    def __call__(self, task: Task, text: str) -> Verdict:
        answer = final_answer(text)
        if not answer:
            return Verdict.wrong_format("expected an answer after the reasoning; found none")
        constraints = zip(task.metadata["instruction_id_list"], task.metadata["kwargs"], strict=True)
        meets = follows_loosely if task.metadata["reading"] == "loose" else follows
        met = [(name, meets(answer, name, kwargs)) for name, kwargs in constraints]
        parts = {f"{position}:{name}": float(passed) for position, (name, passed) in enumerate(met)}
        broken = [name for name, passed in parts.items() if not passed]
        score = 1 - len(broken) / len(met) if task.metadata["grading_mode"] == "fraction" else float(not broken)
        return Verdict.scored(score, parts, f"not followed: {', '.join(broken)}" if broken else "")

    def close(self) -> None:
        """Nothing was started."""
