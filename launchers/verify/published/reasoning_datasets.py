"""reasoning-gym: of each dataset whose rule a domain here has, the own answer scores 1 and another one 0.

Its rule is then that of `math`: one value, list of values, expression or word. The other datasets have no domain here,
and are scored by the package's own `score_answer` in `reasoning_gym`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cascade_rl.launchers.verify.published.case import Case, asking
from cascade_rl.launchers.verify.published.upstream import gym_datasets

SIZE = 20  # of a dataset
MOST_SECONDS = 300
IN_MATHS = re.findall(
    r"\w+",
    "acre advanced_geometry aiw base_conversion basic_arithmetic binary_alternation calendar_arithmetic chain_sum "
    "circuit_logic coin_flip color_cube_rotation complex_arithmetic count_bits count_primes course_schedule "
    "decimal_arithmetic decimal_chain_sum dice family_relationships fraction_simplification gcd gsm_symbolic "
    "isomorphic_strings largest_island lcm leg_counting letter_counting mahjong_puzzle maze needle_haystack "
    "number_format number_sequence polynomial_equations polynomial_multiplication power_function products ransom_note "
    "rectangle_count rotten_oranges self_reference simple_equations simple_geometry simple_integration syllogism",
)
# Why the others have no domain here.
ELSEWHERE = {
    "a grid": "arc_1d arc_agi binary_matrix futoshiki game_of_life kakurasu manipulate_matrix mini_sudoku modulo_grid "
    "n_queens pool_matrix rearc rotate_matrix spiral_matrix sudoku survo",
    "any of many right answers, such as moves, paths and formulas": "boxnet codeio countdown cryptarithm graph_color "
    "group_anagrams intermediate_integration jugs knight_swap palindrome_generation palindrome_partitioning path_star "
    "prime_factorization propositional_logic puzzle24 quantum_lock rubiks_cube rush_hour shortest_path sokoban "
    "tower_of_hanoi tsumego word_ladder",
    "a text, character by character": "ab bf bitwise_arithmetic caesar_cipher emoji_mystery figlet_font knights_knaves "
    "letter_jumble list_functions number_filtering number_sorting sentence_reordering spell_backward string_insertion "
    "string_manipulation string_splitting string_synthesis time_intervals word_sequence_reversal word_sorting "
    "zebra_puzzles",
    "its scorer gives any answer 1": "game_of_life_halting",
    "a mixture of other datasets": "composite",
}


def cases(folder: Path) -> Iterator[Case]:
    if not (folder / "reasoning_gym").is_dir():
        return
    command = (sys.executable, "-m", gym_datasets.__name__, str(folder), str(SIZE), *IN_MATHS)
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS, check=True)
    for number, line in enumerate(drawn.stdout.splitlines()):
        name, question, answer, other = json.loads(line)
        row = asking(question, "math", expected_answer=answer)
        yield Case("answers", f"{name} {number}", row, (f"\\boxed{{{answer}}}",), 1.0)
        if other is not None:
            yield Case("other answers", f"{name} {number}", row, (f"\\boxed{{{other}}}",), 0.0)
