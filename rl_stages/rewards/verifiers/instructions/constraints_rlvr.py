"""The training constraints of IF-RLVR (Pyatkin et al. 2025, arXiv:2507.02833; open-instruct's IFEvalG).

Differences, each of which follows the wording of the request:

- Only words are words; the original's tokenizer counts a full stop as one.
- Keywords match literally and as whole words; the original compiles them and finds "cat" in "category".
- A relation between neighbours needs two of them, so a text of one word or sentence does not pass by default.
- `bigram_wrapping` requires every pair to be closed; `sentence_hyphens` requires two sentences joined by a hyphen.
- `copy_span_idx` copies the character at `n_end` too, "between (and including)"; the original leaves it out.
- `counting_composition` accepts "***" and, as the request spells it, "* * *".
"""

from __future__ import annotations

import re
from itertools import pairwise

from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints import (
    bare_words,
    compare,
    instruction,
    nonempty_parts,
    occurrences,
    spans,
    words,
)
from cascade_rl.rl_stages.rewards.verifiers.instructions.sentences import sentences

_DIVIDER = re.compile(r"\s?\*\s?\*\s?\*\s?")


def same_words(left: str, right: str) -> bool:
    return left.strip().lower() == right.strip().lower()


def is_palindrome(word: str) -> bool:
    return len(word) > 1 and word == word[::-1]


@instruction("copy:repeat_phrase")
def repeat_phrase(answer: str, *, phrase: str, small_n: int) -> bool:
    reference = phrase.split()
    found = [span.split() for span in spans(answer, f"{reference[0]} ", f" {reference[-1]}")]
    if len(found) != small_n or not all(len(match) == len(reference) for match in found):
        return False
    return all(sum(a != b for a, b in zip(match, reference, strict=True)) == 1 for match in found)


@instruction("copy:copy")
@instruction("copy:copying_simple")
def copy_prompt(answer: str, *, prompt_to_repeat: str) -> bool:
    return same_words(answer, prompt_to_repeat)


@instruction("copy:copying_multiple")
def copying_multiple(answer: str, *, prompt_to_repeat: str, N: int) -> bool:
    copies = answer.split("******")
    return len(copies) == N and all(same_words(copy, prompt_to_repeat) for copy in copies)


@instruction("new:copy_span_idx")
def copy_span_idx(answer: str, *, n_start: int, n_end: int, prompt_to_repeat: str) -> bool:
    return same_words(answer, prompt_to_repeat[n_start : n_end + 1])


@instruction("detectable_format:sentence_hyphens")
def sentence_hyphens(answer: str) -> bool:
    parts = answer.split("-")
    joined = all(part and part == part.strip() for part in parts)
    return joined and len(parts) > 1 and parts == sentences(answer.replace("-", " "))


@instruction("detectable_format:square_brackets")
def square_brackets(answer: str) -> bool:
    return all(re.fullmatch(r"\[[^\[\]]+\]", word) for word in answer.split())


@instruction("detectable_format:bigram_wrapping")
def bigram_wrapping(answer: str) -> bool:
    return re.fullmatch(r"(?:<<[^\s<>]+\s+[^\s<>]+>>\s*)+", answer) is not None


@instruction("keywords:no_adjacent_consecutive")
def no_adjacent_consecutive(answer: str) -> bool:
    initials = [word[0] for word in bare_words(answer)]
    return len(initials) > 1 and all(ord(after) - ord(before) != 1 for before, after in pairwise(initials))


@instruction("keywords:word_once")
def word_once(answer: str, *, keyword: str) -> bool:
    return occurrences(answer, keyword) == 1


@instruction("keywords:word_count_different_numbers")
def word_count_different_numbers(answer: str, *, keyword: str, frequency: int, relation: str) -> bool:
    return compare(occurrences(answer, keyword), relation, frequency)


@instruction("keywords:exclude_word_harder")
def exclude_word_harder(answer: str, *, keyword: str) -> bool:
    return occurrences(answer, keyword) == 0


@instruction("keywords:palindrome")
def palindrome(answer: str) -> bool:
    return any(is_palindrome(word) for word in bare_words(answer))


@instruction("keywords:keyword_specific_position")
@instruction("words:keywords_specific_position")
def keyword_specific_position(answer: str, *, keyword: str, n: int, m: int) -> bool:
    found = sentences(answer)
    if not 1 <= n <= len(found):
        return False
    there = words(found[n - 1])
    return 1 <= m <= len(there) and same_words(there[m - 1], keyword)


@instruction("keywords:start_end")
def start_end(answer: str) -> bool:
    there = words(answer)
    whole = answer.startswith(there[0]) and answer.endswith(there[-1]) if there else False
    return whole and len(there) > 1 and same_words(there[0], there[-1])


@instruction("paragraphs:paragraphs")
def paragraphs(answer: str) -> bool:
    return len(nonempty_parts(re.split(r"\s?\*\*\*\s?", answer))) == 2


@instruction("paragraphs:paragraphs2")
def paragraphs2(answer: str) -> bool:
    return len(nonempty_parts(answer.split("\n\n"))) == 2


@instruction("first_word:first_word_sent")
def first_word_sent(answer: str, *, first_word: str) -> bool:
    return all(same_words((words(sentence) or [""])[0], first_word) for sentence in sentences(answer))


@instruction("first_word:first_word_answer")
def first_word_answer(answer: str, *, first_word: str) -> bool:
    return same_words((words(answer) or [""])[0], first_word)


@instruction("last_word:last_word_sent")
def last_word_sent(answer: str, *, last_word: str) -> bool:
    return all(same_words((words(sentence) or [""])[-1], last_word) for sentence in sentences(answer))


@instruction("last_word:last_word_answer")
def last_word_answer(answer: str, *, last_word: str) -> bool:
    return same_words((words(answer) or [""])[-1], last_word)


@instruction("punctuation:punctuation_dot")
def punctuation_dot(answer: str) -> bool:
    return "." not in answer


@instruction("punctuation:punctuation_exclamation")
def punctuation_exclamation(answer: str) -> bool:
    return "!" not in answer


@instruction("count:lowercase_counting")
def lowercase_counting(answer: str, *, N: int) -> bool:
    return len(re.findall(r"\b[a-z]+\b", answer)) <= N


@instruction("count:counting_composition")
def counting_composition(answer: str, *, n_sent: int, n_words: int) -> bool:
    parts = nonempty_parts(_DIVIDER.split(answer))
    counts = [[len(words(sentence)) for sentence in sentences(part)] for part in parts]
    return counts == [[n_words] * n_sent] * 3


@instruction("count:count_unique")
def count_unique(answer: str) -> bool:
    there = [word.lower() for word in words(answer)]
    return 0 < len(there) == len(set(there))


@instruction("count:count_increment_word")
def count_increment_word(answer: str, *, keyword1: str, keyword2: str) -> bool:
    return occurrences(answer, keyword1) == 1 and occurrences(answer, keyword2) == 2


@instruction("letters:letter_counting")
def letter_counting(answer: str, *, N: int, relation: str) -> bool:
    return compare(len(re.findall("[a-zA-Z]", answer)), relation, N)


@instruction("letters:letter_counting2")
def letter_counting2(answer: str, *, letter: str, let_frequency: int, let_relation: str) -> bool:
    return compare(answer.lower().count(letter.lower()), let_relation, let_frequency)
