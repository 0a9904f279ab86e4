r"""Multiple choice: compares the option that an answer names with the expected one.

Rows are those of NeMo-Gym's `mcqa` server, with these differences (those of reading one text: `option_letters.py`):

- A letter counts only if it is an option; Gym trusts the letter of a custom expression.
- A list such as "A/B/C" names no option, however it is read; Gym's custom expressions take its first letter. So do
  boxes with nothing between them; Gym takes the last.
- An "Answer:" line without an option is passed over, as in Gym. One with several ends the search. The same holds of a
  row's own `answer_prefix` ("Die Antwort ist"), with which a box counts too where neither is found.
- An option's text counts if it is the whole answer; Gym also finds it in a longer one ("not aspirin").
- A row's expression has MATCH_SECONDS; Gym's has no limit.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import regex

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.verifiers.maths.boxes import last_box
from cascade_rl.rl_stages.rewards.verifiers.option_letters import (
    labelled,
    option_named,
    options_after,
    options_meant,
)

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task

BOXED = "strict_single_letter_boxed"
BOXED_TEXT = "lenient_boxed"
COLON_MD = "lenient_answer_colon_md"
COLON = ("lenient_answer_colon", COLON_MD)
GRADING_MODES = (BOXED, BOXED_TEXT, *COLON)
MATCH_SECONDS = 2.0  # of this process's processor time. `regex` lets other threads run meanwhile.

_ANSWER = re.compile(r"(?<![A-Za-z])answer[*_]*+\s*+[:\uff1a][*_\s]*+", re.IGNORECASE)
_GOES_ON = re.compile(r"['\u2019-]?\w")  # "B-cells"
_BETWEEN_BOXES = re.compile(
    r"[\s$.,;/|&+()*\\]*+(?:(?:or|and)\b)?+[\s$(*]*+"
    r"|[ $,;/|&+()*]*+(?:(?:or|and)\b)?+(?![^:=]*\b(?:no|not|wrong|wait|actually|correct\w*|final\w*|answer)\b)"
    r"[^\n.:={}\\]{1,80}+[:=][\s$(*]*+",  # each box behind a name of its own, as in "fig: ... or blue: ..."
    re.IGNORECASE,
)


def last_match(pattern: str, text: str, options: Mapping[str, str]) -> str | None:
    """The option in the last match of `pattern`; None without one, or if its line goes on as in "A/B".

    TimeoutError if the expression takes more than MATCH_SECONDS.
    """
    matches = list(regex.finditer(pattern, text, regex.IGNORECASE, timeout=MATCH_SECONDS))
    if not matches:
        return None
    group = min(1, matches[-1].re.groups)
    said, start = matches[-1].group(group) or "", matches[-1].start(group)
    letter = said.strip()
    if len(letter) != 1 or letter not in string.ascii_letters:
        return option_named(said, options)
    rest = text[start + said.index(letter) :].partition("\n")[0]
    return None if _GOES_ON.match(rest, 1) else only(options_after(rest, (0, 1), options))


def last_answer(text: str, options: Mapping[str, str], prefix: str = "") -> set[str]:
    """The options of the last "Answer:", or last `prefix`, that names any."""
    text = unicodedata.normalize("NFKC", text) if prefix else text
    own = re.finditer(re.escape(unicodedata.normalize("NFKC", prefix)), text, re.IGNORECASE) if prefix else ()
    end = len(text)
    for start, stop in sorted((label.span() for label in (*_ANSWER.finditer(text), *own)), reverse=True):
        if means := options_meant(text[stop:end].partition("\n")[0], options):
            return means
        end = start
    return set()


def boxed_option(text: str, options: Mapping[str, str], mode: str) -> str | None:
    """The option in the last box; None if the box before it, in a list with it, holds another."""
    read = labelled_or_named if mode == BOXED_TEXT else labelled
    letter = read(last_box(text) or "", options)
    before = text[: max(text.rfind("\\boxed{"), 0)]
    if letter is None or (earlier := last_box(before)) is None:
        return letter
    in_list = _BETWEEN_BOXES.fullmatch(before.rpartition("}")[2]) is not None
    return None if in_list and read(earlier, options) not in (None, letter) else letter


def labelled_or_named(text: str, options: Mapping[str, str]) -> str | None:
    return labelled(text, options) or option_named(text, options)


def only(means: set[str]) -> str | None:
    return next(iter(means)) if len(means) == 1 else None


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """`options` by letter, `expected_answer`, `grading_mode`, and before it `patterns`, checked (UserError).

    `prefix` is what the answer stands behind in the question's language, for "lenient_answer_colon_md"; else "".
    """
    options = _options(row.get("options"))
    expected = str(row.get("expected_answer") or "").strip().upper()
    if expected not in options:
        raise UserError(
            f"expected 'expected_answer' to be one of {', '.join(options)}; found {row.get('expected_answer')!r}"
        )
    mode = BOXED if row.get("grading_mode") is None else row["grading_mode"]
    if mode not in GRADING_MODES:
        raise UserError(f"expected 'grading_mode' to be one of {', '.join(GRADING_MODES)}; found {mode!r}")
    metadata = {} if row.get("template_metadata") is None else row["template_metadata"]
    if not isinstance(metadata, dict):
        raise UserError(f"expected 'template_metadata' to be an object; found {metadata!r}")
    patterns = _patterns(metadata.get("output_regex"))
    for pattern in patterns:
        _check_pattern(pattern)
    prefix = metadata.get("answer_prefix") or ""
    if not isinstance(prefix, str):
        raise UserError(f"expected 'answer_prefix' to be text; found {prefix!r}")
    fields = {"options": options, "expected_answer": expected, "grading_mode": mode, "patterns": patterns}
    return fields | {"prefix": prefix if mode == COLON_MD else ""}


def _patterns(patterns: object) -> list[object]:
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
    """Score 1 for the expected option, 0 for another; an answer that names no single option is a wrong format.

    So is one on which a row's expression does not end: were it masked, a policy could mask what it cannot answer.
    """

    concurrency = 1

    def __call__(self, task: Task, text: str) -> Verdict:
        expected = task.metadata["expected_answer"]
        try:
            letter = self.letter(final_answer(text) or "", task.metadata)
        except TimeoutError:
            return Verdict.wrong_format(f"output_regex took more than {MATCH_SECONDS:g} s")
        if letter is None:
            return Verdict.wrong_format("expected an answer that names one option; found none")
        return Verdict.scored(float(letter == expected), detail=f"{letter} against {expected}")

    def close(self) -> None:
        """Nothing was started."""

    def letter(self, answer: str, metadata: Mapping[str, Any]) -> str | None:
        options, mode = metadata["options"], metadata["grading_mode"]
        found = (last_match(pattern, answer, options) for pattern in metadata["patterns"])
        if letter := next((letter for letter in found if letter), None):
            return letter
        if mode not in COLON:
            return boxed_option(answer, options, mode)
        means, prefix = last_answer(answer, options, metadata["prefix"]), metadata["prefix"]
        return boxed_option(answer, options, BOXED) if prefix and not means else only(means)
