"""Instruction following: the constraints of IFEval (Zhou et al. 2023, arXiv:2311.07911), checked by program.

Semantics are those of google-research/instruction_following_eval, with these stated differences:

- An empty or unfinished answer passes nothing (the original passes `no_comma` and `forbidden_words` on "").
- Every keyword argument must be given; the original draws missing ones at random (olmo-eval#296).
- Keywords match literally; the original compiles them as regular expressions.
- Sentences and words are split by the expressions below; the original downloads NLTK's models.
- `english_capital` and `english_lowercase` test the case only: detecting a language needs more than a line.
- `nth_paragraph_first_word` indexes the paragraphs that it counts (sieval#104).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cascade_rl.engine.errors import UserError
from cascade_rl.rl_stages.verdict import Verdict, final_answer

if TYPE_CHECKING:
    from cascade_rl.rl_stages.task import Task

Check = Callable[..., bool]
CHECKS: dict[str, Check] = {}
RELATIONS = ("less than", "at least")
CONSTRAINED_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

_WORD = re.compile(r"\w+")
_HYPHENATED_WORD = re.compile(r"\w+(?:-\w+)*")
_ABBREVIATION_DOT = re.compile(r"\b(Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Inc|Ltd|Co|vs|etc|e\.g|i\.e|[A-Z])\.")
_SENTENCE_END = re.compile(r"[.!?]+[\"')\]*]*\s+")


def instruction(name: str) -> Callable[[Check], Check]:
    """Registers a check under its IFEval id. Its keyword-only parameters are the row's kwargs."""

    def register(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return register


def compare(count: int, relation: str, limit: int) -> bool:
    return count < limit if relation == "less than" else count >= limit


def split_sentences(text: str) -> list[str]:
    """Sentences of `text`; titles, initials and the like end none."""
    protected = _ABBREVIATION_DOT.sub(r"\1", text)
    return [part for part in _SENTENCE_END.split(protected) if part.strip()]


def nonempty_parts(parts: Sequence[str]) -> list[str]:
    """The parts of a split, where only the first and the last may be blank; [] when another one is."""
    if not all(part.strip() for part in parts[1:-1]):
        return []
    return [part for part in parts if part.strip()]


@instruction("keywords:existence")
def keyword_existence(answer: str, *, keywords: list[str]) -> bool:
    return all(keyword.lower() in answer.lower() for keyword in keywords)


@instruction("keywords:frequency")
def keyword_frequency(answer: str, *, keyword: str, frequency: int, relation: str) -> bool:
    return compare(answer.lower().count(keyword.lower()), relation, frequency)


@instruction("keywords:forbidden_words")
def forbidden_words(answer: str, *, forbidden_words: list[str]) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", answer, re.IGNORECASE) for word in forbidden_words)


@instruction("keywords:letter_frequency")
def letter_frequency(answer: str, *, letter: str, let_frequency: int, let_relation: str) -> bool:
    return compare(answer.lower().count(letter.lower()), let_relation, let_frequency)


@instruction("length_constraints:number_words")
def number_words(answer: str, *, num_words: int, relation: str) -> bool:
    return compare(len(_WORD.findall(answer)), relation, num_words)


@instruction("length_constraints:number_sentences")
def number_sentences(answer: str, *, num_sentences: int, relation: str) -> bool:
    return compare(len(split_sentences(answer)), relation, num_sentences)


@instruction("length_constraints:number_paragraphs")
def number_paragraphs(answer: str, *, num_paragraphs: int) -> bool:
    return len(nonempty_parts(re.split(r"\s?\*\*\*\s?", answer))) == num_paragraphs


@instruction("length_constraints:nth_paragraph_first_word")
def nth_paragraph_first_word(
    answer: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    paragraphs = [part.strip() for part in answer.split("\n\n") if part.strip()]
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    opening = paragraphs[nth_paragraph - 1].split()[0].lstrip("'\"")
    return re.split(r"[.,?!'\"]", opening)[0].lower() == first_word.lower()


@instruction("detectable_content:number_placeholders")
def number_placeholders(answer: str, *, num_placeholders: int) -> bool:
    return len(re.findall(r"\[.*?\]", answer)) >= num_placeholders


@instruction("detectable_content:postscript")
def postscript(answer: str, *, postscript_marker: str) -> bool:
    patterns = {"P.P.S": r"\s*p\.\s?p\.\s?s.*$", "P.S.": r"\s*p\.\s?s\..*$"}
    pattern = patterns.get(postscript_marker, rf"\s*{re.escape(postscript_marker.lower())}.*$")
    return re.search(pattern, answer.lower(), re.MULTILINE) is not None


@instruction("detectable_format:number_bullet_lists")
def number_bullet_lists(answer: str, *, num_bullets: int) -> bool:
    stars = re.findall(r"^\s*\*[^\*].*$", answer, re.MULTILINE)
    dashes = re.findall(r"^\s*-.*$", answer, re.MULTILINE)
    return len(stars) + len(dashes) == num_bullets


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
    return any(found.strip("<> ") for found in re.findall(r"<<[^\n]+>>", answer))


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
    return answer.isupper()


@instruction("change_case:english_lowercase")
def english_lowercase(answer: str) -> bool:
    return answer.islower()


@instruction("punctuation:no_comma")
def no_comma(answer: str) -> bool:
    return "," not in answer


def follows(answer: str, instruction_id: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether a stripped answer meets one constraint. An empty one meets none."""
    return bool(answer) and CHECKS[instruction_id](answer, **kwargs)


def _matches(value: object, annotation: str) -> bool:
    if annotation == "list[str]":
        return isinstance(value, list) and bool(value) and all(_matches(item, "str") for item in value)
    if annotation == "int":
        return type(value) is int
    return isinstance(value, str) and bool(value)


def check_instruction(instruction_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The kwargs without nulls. UserError on an unknown id, or on a missing, unknown or mistyped kwarg."""
    if instruction_id not in CHECKS:
        known = ", ".join(sorted(CHECKS))
        raise UserError(f"expected an instruction id among {known}; found {instruction_id!r}")
    given = {name: value for name, value in kwargs.items() if value is not None}
    parameters = list(inspect.signature(CHECKS[instruction_id]).parameters.values())[1:]
    expected = {parameter.name: parameter.annotation for parameter in parameters}
    if set(given) != set(expected):
        raise UserError(f"{instruction_id}: expected kwargs {sorted(expected)}; found {sorted(given)}")
    for name, value in given.items():
        if not _matches(value, expected[name]):
            raise UserError(f"{instruction_id}: expected {name} to be a {expected[name]}; found {value!r}")
        if name.endswith("relation") and value not in RELATIONS:
            raise UserError(f"{instruction_id}: expected {name} to be one of {RELATIONS}; found {value!r}")
    return given


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The verifier's fields of a NeMo-Gym row, checked: `instruction_id_list` and, one for each, `kwargs`."""
    ids, kwargs = row.get("instruction_id_list"), row.get("kwargs")
    if not isinstance(ids, list) or not ids:
        raise UserError(f"expected 'instruction_id_list' to be a non-empty list of ids; found {ids!r}")
    if (
        not isinstance(kwargs, list)
        or len(kwargs) != len(ids)
        or not all(isinstance(k, dict) for k in kwargs)
    ):
        raise UserError(
            f"expected 'kwargs' to be a list of {len(ids)} objects, one for each id; found {kwargs!r}"
        )
    checked = [check_instruction(*pair) for pair in zip(ids, kwargs, strict=True)]
    return {"instruction_id_list": ids, "kwargs": checked}


class InstructionFollowingVerifier:
    """Score 1 when every constraint of the task is met, else 0. `parts` holds each by position and id."""

    def __call__(self, task: Task, text: str) -> Verdict:
        answer = final_answer(text)
        if not answer:
            return Verdict.wrong_format("expected an answer after the reasoning; found none")
        constraints = zip(task.metadata["instruction_id_list"], task.metadata["kwargs"], strict=True)
        met = [(name, follows(answer, name, kwargs)) for name, kwargs in constraints]
        parts = {f"{position}:{name}": float(passed) for position, (name, passed) in enumerate(met)}
        broken = [name for name, passed in parts.items() if not passed]
        return Verdict.scored(
            float(not broken), parts, f"not followed: {', '.join(broken)}" if broken else ""
        )

    def close(self) -> None:
        """Nothing was started."""
