r"""Multiple choice: compares the option that an answer names with the expected one.

Rows are those of NeMo-Gym's `mcqa` server, with these differences:

- The last box, `Answer:` line or match of the row's own expression counts; Gym takes the first box or line.
- A letter counts only if it is an option; Gym trusts the letter of a custom expression.
- A list such as "A/B/C" names no option, however it is read; Gym's custom expressions take its first letter.
- An option's text counts if it is the whole answer; Gym also finds it in a longer one ("not aspirin").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import regex

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.verifiers.maths.boxes import last_box

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

BOXED = "strict_single_letter_boxed"
BOXED_TEXT = "lenient_boxed"
COLON = ("lenient_answer_colon", "lenient_answer_colon_md")
GRADING_MODES = (BOXED, BOXED_TEXT, *COLON)
MATCH_SECONDS = 2.0  # a row's expression that backtracks must not hold the interpreter for long

_COLON_LINE = r"(?<![A-Za-z])answer[*_]*\s*:[*_ \t]*([^\n]+)"
_COMMAND = re.compile(r"\\(?:boxed|text|textbf|textrm|mathrm|mathbf|mathbb)\s*\{(.*)\}", re.DOTALL)
_LETTER_AND_TEXT = re.compile(r"\(?([A-Za-z])[).:]+\s*(.+)", re.DOTALL)
_LIST_GOES_ON = re.compile(r"\w|\s*[/,&|+;]\s*\(?[A-Za-z](?![A-Za-z])|\s*(?:or|and)\s+\(?[A-Z](?![A-Za-z])")
_SCRIPTS = str.maketrans("أبجدঅবডঢＡＢＣＤ", "ABCD" * 3)  # the letters of Gym's Arabic, Bengali and full-width prompts


def unwrapped(text: str) -> str:
    r"""`text` without what surrounds a bare answer: `\text{}`, markdown, dollars, brackets and a full stop."""
    while True:
        inner = text.strip().strip("$*_`").strip().removesuffix(".")
        if match := _COMMAND.fullmatch(inner):
            inner = match.group(1)
        if inner[:1] + inner[-1:] in ("()", "{}"):
            inner = inner[1:-1]
        if inner == text:
            return inner
        text = inner


def option_letter(text: str, options: Mapping[str, str]) -> str | None:
    """The option whose letter is all that `text` says; None for anything else."""
    letter = unwrapped(text).translate(_SCRIPTS).upper()
    return letter if letter in options else None


def option_named(text: str, options: Mapping[str, str]) -> str | None:
    """As `option_letter`, or the one option whose text, with or without its letter, is all that `text` says."""
    if letter := option_letter(text, options):
        return letter
    said = unwrapped(text)
    if match := _LETTER_AND_TEXT.fullmatch(said):
        letter = match.group(1).upper()
        if _folded(options.get(letter, "")) == _folded(match.group(2)):
            return letter
    same = [letter for letter, option in options.items() if _folded(option) == _folded(said)]
    return same[0] if len(same) == 1 else None


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def last_match(pattern: str, text: str, options: Mapping[str, str]) -> str | None:
    """The option in the last match of `pattern`; None without one, or if more letters follow it as in "A/B".

    TimeoutError if the expression takes more than MATCH_SECONDS.
    """
    matches = list(regex.finditer(pattern, text, regex.IGNORECASE, timeout=MATCH_SECONDS))
    if not matches:
        return None
    group = min(1, matches[-1].re.groups)
    said, end = matches[-1].group(group), matches[-1].end(group)
    if len(said.strip()) == 1 and _LIST_GOES_ON.match(text, end):
        return None
    return option_named(said, options)


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """`options` by letter, `expected_answer` and either `patterns` or `grading_mode`, checked (UserError)."""
    options = _options(row.get("options"))
    expected = str(row.get("expected_answer") or "").strip().upper()
    if expected not in options:
        raise UserError(
            f"expected 'expected_answer' to be one of {', '.join(options)}; found {row.get('expected_answer')!r}"
        )
    mode = BOXED if row.get("grading_mode") is None else row["grading_mode"]
    if mode not in GRADING_MODES:
        raise UserError(f"expected 'grading_mode' to be one of {', '.join(GRADING_MODES)}; found {mode!r}")
    patterns = _patterns(row.get("template_metadata"))
    for pattern in patterns:
        _check_pattern(pattern)
    return {"options": options, "expected_answer": expected, "grading_mode": mode, "patterns": patterns}


def _patterns(metadata: object) -> list[object]:
    if metadata is not None and not isinstance(metadata, dict):
        raise UserError(f"expected 'template_metadata' to be an object; found {metadata!r}")
    patterns = (metadata or {}).get("output_regex")
    if patterns is not None and not isinstance(patterns, str | list):
        raise UserError(f"expected 'output_regex' to be an expression or a list of them; found {patterns!r}")
    return [patterns] if isinstance(patterns, str) else patterns or []


def _options(value: object) -> dict[str, str]:
    entries = value if isinstance(value, list) else []
    pairs = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items()]
    options = {letter.upper(): text for letter, text in pairs if text is not None}
    named = [letter for letter, text in pairs if text is not None]
    well_formed = all(isinstance(entry, dict) for entry in entries)
    well_formed &= all(re.fullmatch("[A-Za-z]", letter) for letter in named)
    well_formed &= all(isinstance(text, str) for text in options.values())
    if not well_formed or len(options) != len(named) or len(options) < 2:
        raise UserError(f"expected 'options' to be two or more of {{\"A\": text}}, no letter twice; found {value!r}")
    return options


def _check_pattern(pattern: object) -> None:
    form = "an expression with at most one group"
    try:
        groups = regex.compile(pattern).groups if isinstance(pattern, str) else 2
    except regex.error as error:
        raise UserError(f"expected 'output_regex' to be {form}; found {pattern!r} ({error})") from None
    if groups > 1:
        raise UserError(f"expected 'output_regex' to be {form}; found {pattern!r}")


class MultipleChoiceVerifier:
    """Score 1 for the expected option, 0 for another; an answer that names no single option is a wrong format."""

    concurrency = 1

    def __call__(self, task: Task, text: str) -> Verdict:
        expected = task.metadata["expected_answer"]
        try:
            letter = self._letter(final_answer(text) or "", task.metadata)
        except TimeoutError:
            return Verdict.infrastructure_failure(f"output_regex took more than {MATCH_SECONDS:g} s")
        if letter is None:
            return Verdict.wrong_format("expected an answer that names one option; found none")
        return Verdict.scored(float(letter == expected), detail=f"{letter} against {expected}")

    def close(self) -> None:
        """Nothing was started."""

    def _letter(self, answer: str, metadata: Mapping[str, Any]) -> str | None:
        options, mode = metadata["options"], metadata["grading_mode"]
        patterns = [*metadata["patterns"], *([_COLON_LINE] if mode in COLON else [])]
        found = (last_match(pattern, answer, options) for pattern in patterns)
        if letter := next((letter for letter in found if letter), None):
            return letter
        read = option_named if mode == BOXED_TEXT else option_letter
        return None if mode in COLON else read(last_box(answer) or "", options)
