"""Tasks of the package reasoning-gym, scored by its own `score_answer`.

Rows are those of NeMo-Gym's `reasoning_gym` server: `question`, `answer` and `metadata.source_dataset`. A task is
allowed if, measured here with 0.1.25, its own answer scores 1 after a round trip through JSON and garbage does not.

Excluded for their scores are arc_agi, boxnet, graph_color, propositional_logic, rearc, rubiks_cube and rush_hour (their
own answer fails), coin_flip ("0" is always right), game_of_life_halting (any answer is right) and composite (not a
task). Others are excluded because they pass the answer or the row to `eval`, or to sympy's parser, which uses `eval`:
binary_matrix, bitwise_arithmetic, countdown, intermediate_integration, n_queens, number_sorting,
polynomial_multiplication, puzzle24, simple_integration, spiral_matrix and string_insertion.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.deadline_worker import DeadlineCheck
from cascade_rl.rl_stages.rewards.verifiers import reasoning_gym_worker
from cascade_rl.rl_stages.rewards.verifiers.maths.boxes import last_box

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

PACKAGE = "reasoning-gym==0.1.25"
TASKS = frozenset(
    re.findall(
        r"\w+",
        """
        ab acre advanced_geometry aiw arc_1d base_conversion basic_arithmetic bf binary_alternation caesar_cipher
        calendar_arithmetic chain_sum circuit_logic codeio color_cube_rotation complex_arithmetic count_bits
        count_primes course_schedule cryptarithm decimal_arithmetic decimal_chain_sum dice emoji_mystery
        family_relationships figlet_font fraction_simplification futoshiki game_of_life gcd group_anagrams
        gsm_symbolic isomorphic_strings jugs kakurasu knight_swap knights_knaves largest_island lcm leg_counting
        letter_counting letter_jumble list_functions mahjong_puzzle manipulate_matrix maze mini_sudoku modulo_grid
        needle_haystack number_filtering number_format number_sequence palindrome_generation palindrome_partitioning
        path_star polynomial_equations pool_matrix power_function prime_factorization products quantum_lock
        ransom_note rectangle_count rotate_matrix rotten_oranges self_reference sentence_reordering shortest_path
        simple_equations simple_geometry sokoban spell_backward string_manipulation string_splitting string_synthesis
        sudoku survo syllogism time_intervals tower_of_hanoi tsumego word_ladder word_sequence_reversal word_sorting
        zebra_puzzles
        """,
    )
)

_BEFORE, _AFTER = "<answer>", "</answer>"


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """`entry`, as the package's scorers read it. UserError on a malformed row, another task, or no package."""
    metadata = row.get("metadata")
    task = metadata.get("source_dataset") if isinstance(metadata, dict) else None
    if not isinstance(task, str):
        raise UserError(f"expected 'metadata.source_dataset' to name a task of reasoning-gym; found {task!r}")
    if task not in TASKS:
        raise UserError(f"expected an allowed task of reasoning-gym, one of {', '.join(sorted(TASKS))}; found {task!r}")
    for name in ("question", "answer"):
        if not isinstance(row.get(name), str):
            raise UserError(f"expected '{name}' to be text; found {row.get(name)!r}")
    if importlib.util.find_spec("reasoning_gym") is None:
        raise UserError(f"expected the package reasoning-gym; not installed. Run .venv/bin/uv pip install {PACKAGE}")
    return {"entry": {"question": row["question"], "answer": row["answer"], "metadata": metadata}}


def given_answer(text: str) -> str:
    r"""The last `<answer>`, else the last `\boxed{}`, else the whole text; NeMo-Gym's server takes the first ones."""
    *ended, _ = text.split(_AFTER)
    tagged = next((part.partition(_BEFORE)[2] for part in reversed(ended) if _BEFORE in part), None)
    return last_box(text) or text if tagged is None else tagged.strip()


class ReasoningGymVerifier:
    """Score 1 for an answer that its task scores as fully right, else 0: some tasks' partial scores reward garbage.

    Safe to call from several threads. The package is imported in a worker, which is killed at the deadline.
    """

    concurrency = 1

    def __init__(self, deadline_seconds: float = 10.0) -> None:
        self._check = DeadlineCheck(reasoning_gym_worker.__name__, deadline_seconds)

    def __call__(self, task: Task, text: str) -> Verdict:
        answer = final_answer(text)
        if not answer:
            return Verdict.wrong_format("expected an answer after the reasoning; found none")
        return self._check({"entry": task.metadata["entry"], "answer": given_answer(answer)})

    def close(self) -> None:
        """Ends the worker process, if there is one."""
        self._check.close()
