"""The constraints of IFEval (Zhou et al. 2023, arXiv:2311.07911).

Semantics are those of google-research/instruction_following_eval, with these differences:

- Keywords match literally; the original compiles them as regular expressions. A forbidden "C++" is found.
- Sentences are split by the rules of `sentences.py`; the original downloads NLTK's model. Both count a word of any
  script as one.
- `english_capital` and `english_lowercase` detect the language of the text in lower case, and common English words are
  proof enough. The original takes many capitals for German, and passes a text without a language.
- A bullet is a line of its own; the original counts one for a "*" and the line below it.
- `nth_paragraph_first_word` indexes the paragraphs that it counts (sieval#104).
"""

from __future__ import annotations

import json
import re

import regex

from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints import (
    compare,
    instruction,
    nonempty_parts,
    occurrences,
    spans,
    word_parts,
)
from cascade_rl.rl_stages.rewards.verifiers.instructions.english import is_english
from cascade_rl.rl_stages.rewards.verifiers.instructions.sentences import sentences

CONSTRAINED_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

_HYPHENATED_WORD = regex.compile(r"\w+(?:-\w+)*")


@instruction("keywords:existence")
def keyword_existence(answer: str, *, keywords: list[str]) -> bool:
    return all(keyword.lower() in answer.lower() for keyword in keywords)


@instruction("keywords:frequency")
def keyword_frequency(answer: str, *, keyword: str, frequency: int, relation: str) -> bool:
    return compare(answer.lower().count(keyword.lower()), relation, frequency)


@instruction("keywords:forbidden_words")
def forbidden_words(answer: str, *, forbidden_words: list[str]) -> bool:
    return not any(occurrences(answer, word) for word in forbidden_words)


@instruction("keywords:letter_frequency")
def letter_frequency(answer: str, *, letter: str, let_frequency: int, let_relation: str) -> bool:
    return compare(answer.lower().count(letter.lower()), let_relation, let_frequency)


@instruction("length_constraints:number_words")
def number_words(answer: str, *, num_words: int, relation: str) -> bool:
    return compare(len(word_parts(answer)), relation, num_words)


@instruction("length_constraints:number_sentences")
def number_sentences(answer: str, *, num_sentences: int, relation: str) -> bool:
    return compare(len(sentences(answer)), relation, num_sentences)


@instruction("length_constraints:number_paragraphs")
def number_paragraphs(answer: str, *, num_paragraphs: int) -> bool:
    return len(nonempty_parts(re.split(r"\s?\*\*\*\s?", answer))) == num_paragraphs


@instruction("length_constraints:nth_paragraph_first_word")
def nth_paragraph_first_word(answer: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    paragraphs = [part.strip() for part in answer.split("\n\n") if part.strip()]
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    opening = paragraphs[nth_paragraph - 1].split()[0].lstrip("'\"")
    return re.split(r"[.,?!'\"]", opening)[0].lower() == first_word.lower()


@instruction("detectable_content:number_placeholders")
def number_placeholders(answer: str, *, num_placeholders: int) -> bool:
    return len(spans(answer, "[", "]")) >= num_placeholders


@instruction("detectable_content:postscript")
def postscript(answer: str, *, postscript_marker: str) -> bool:
    patterns = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    pattern = patterns.get(postscript_marker, re.escape(postscript_marker.lower()))
    return re.search(pattern, answer.lower()) is not None


@instruction("detectable_format:number_bullet_lists")
def number_bullet_lists(answer: str, *, num_bullets: int) -> bool:
    lines = [line.lstrip() for line in answer.split("\n")]
    return sum(line.startswith("-") or bool(re.match(r"\*[^*]", line)) for line in lines) == num_bullets


@instruction("detectable_format:constrained_response")
def constrained_response(answer: str) -> bool:
    return any(option in answer for option in CONSTRAINED_ANSWERS)


@instruction("detectable_format:number_highlighted_sections")
def number_highlighted_sections(answer: str, *, num_highlights: int) -> bool:
    found = re.findall(r"\*[^\n\*]*\*", answer) + re.findall(r"\*\*[^\n\*]*\*\*", answer)
    return sum(bool(section.strip("*").strip()) for section in found) >= num_highlights


@instruction("detectable_format:multiple_sections")
def multiple_sections(answer: str, *, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"\s?{re.escape(section_spliter)}\s?\d+\s?", answer)) >= num_sections


@instruction("detectable_format:json_format")
def json_format(answer: str) -> bool:
    text = re.sub(r"^```(?:json)?", "", answer.strip(), flags=re.IGNORECASE).removesuffix("```")
    try:
        json.loads(text)
    except (ValueError, RecursionError):  # the parser is the check; a deep `[[[...` overflows it
        return False
    return True


@instruction("detectable_format:title")
def title(answer: str) -> bool:
    return any(found.strip("<> ") for found in spans(answer, "<<", ">>"))


@instruction("combination:two_responses")
def two_responses(answer: str) -> bool:
    responses = nonempty_parts(answer.split("******"))
    return len(responses) == 2 and responses[0].strip() != responses[1].strip()


@instruction("combination:repeat_prompt")
def repeat_prompt(answer: str, *, prompt_to_repeat: str) -> bool:
    return answer.strip().lower().startswith(prompt_to_repeat.strip().lower())


@instruction("startend:end_checker")
def end_checker(answer: str, *, end_phrase: str) -> bool:
    return answer.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@instruction("startend:quotation")
def quotation(answer: str) -> bool:
    return len(answer) > 1 and answer[0] == '"' and answer[-1] == '"'


@instruction("change_case:capital_word_frequency")
def capital_word_frequency(answer: str, *, capital_frequency: int, capital_relation: str) -> bool:
    count = sum(word.isupper() for word in _HYPHENATED_WORD.findall(answer))
    return compare(count, capital_relation, capital_frequency)


@instruction("change_case:english_capital")
def english_capital(answer: str) -> bool:
    return answer.isupper() and is_english(answer.lower())


@instruction("change_case:english_lowercase")
def english_lowercase(answer: str) -> bool:
    return answer.islower() and is_english(answer)


@instruction("punctuation:no_comma")
def no_comma(answer: str) -> bool:
    return "," not in answer
