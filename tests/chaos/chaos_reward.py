"""A reward for any text, random weights' included, that takes its time: the share of its letters that are vowels."""

import time

SECONDS = 0.004


def vowels(solution_str: str, ground_truth: str, data_source: str = "", extra_info: object = None) -> float:
    time.sleep(SECONDS)
    letters = [letter for letter in solution_str.lower() if letter.isalpha()]
    return sum(letter in "aeiou" for letter in letters) / max(len(letters), 1)
