"""Converts rows of the data sets that Cascade 1 released to rows of our domains.

nvidia/Nemotron-Cascade-RL-Math                   problem, answer
nvidia/Nemotron-Cascade-RL-Instruction-Following  prompt, instruction_id_list, kwargs
nvidia/Nemotron-Cascade-RL-RLHF                   prompt, category
nvidia/Nemotron-Cascade-RL-SWE                    prompt, golden_patch, relevant_file_contents

A row's own fields tell its set. The rows of nvidia/Nemotron-Cascade-2-RL-data and of all SFT sets are read as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.messages import shown
from cascade_rl.rl_stages.data.rows import Row, scan_rows

# the released problems do not ask for a box, which the paper's verifier reads; these are Qwen's words for Qwen3
MATH_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


def converted(source: str) -> Iterator[tuple[str, Row | UserError]]:
    """Each row of a source in NeMo-Gym's form, with its location, or why it cannot be converted."""
    for where, row in scan_rows(source):
        try:
            yield where, row if isinstance(row, UserError) else convert(row)
        except UserError as error:
            yield where, error


def convert(row: Row) -> dict[str, Any]:
    """The row in NeMo-Gym's form. Its domain checks the fields. UserError if the row is of none of the sets."""
    return converter_of(row, CONVERTERS, "a released set")(row)


def converter_of[T](row: Row, converters: Mapping[tuple[str, ...], T], what: str) -> T:
    """The first one whose fields the row has. Raises UserError, which says that it is no row of `what`."""
    for fields, converter in converters.items():
        if row.keys() >= set(fields):
            return converter
    known = "; ".join(", ".join(fields) for fields in converters)
    raise UserError(f"expected a row with the fields of {what} ({known}); found {', '.join(sorted(row))[:120]}")


def maths(row: Row) -> dict[str, Any]:
    problem = row["problem"]
    if not isinstance(problem, str):
        raise UserError(f"expected 'problem' to be text; found {shown(problem)}")
    return task_row("math", f"{problem}\n\n{MATH_INSTRUCTION}", expected_answer=row["answer"])


def instruction_following(row: Row) -> dict[str, Any]:
    fields = {name: row[name] for name in ("instruction_id_list", "kwargs")}
    return task_row("instruction_following", row["prompt"], **fields)


def _rlhf(row: Row) -> dict[str, Any]:
    return task_row("rlhf", row["prompt"], category=row["category"])


def _swe(row: Row) -> dict[str, Any]:
    """The prompt shows the issue, the files and the form of the answer."""
    listed = row["relevant_file_contents"]
    if not isinstance(listed, list) or not all(map(_is_file, listed)):
        raise UserError(
            f"expected 'relevant_file_contents' to be a list of {{file_path, content}} texts; found {shown(listed)}"
        )
    files = {file["file_path"]: file["content"] for file in listed}
    return task_row(
        "swe_agentless",
        row["prompt"],
        instance_id=row.get("instance_id"),
        files=files,
        gold_patch=row["golden_patch"],
    )


def _is_file(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(name), str) for name in ("file_path", "content"))


def task_row(domain: str, prompt: Any, /, **fields: Any) -> dict[str, Any]:
    """`prompt`: text, which is one user turn, or messages."""
    return {"responses_create_params": {"input": prompt}, "agent_ref": {"name": domain}, **fields}


CONVERTERS: dict[tuple[str, ...], Callable[[Row], dict[str, Any]]] = {
    ("problem", "answer"): maths,
    ("prompt", "instruction_id_list", "kwargs"): instruction_following,
    ("prompt", "golden_patch", "relevant_file_contents"): _swe,
    ("prompt", "category"): _rlhf,
}
