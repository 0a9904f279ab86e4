r"""Which option of a multiple-choice question a piece of text means.

The rules are those of NeMo-Gym's `mcqa` server, with these differences:

- A letter beside the text of another option, a list and an uncertain answer ("B, or maybe C") mean no single option.
- "a cat" and "I think" do not begin with a letter, nor do "B-cells" and "E.coli"; Gym takes one of each.
- A sentence means the one letter that it names, and none if it denies something ("not B"); Gym takes the last.

Every function takes a time that grows linearly with the text: expressions cannot be matched in two ways, and what may
be nested is unwrapped LAYERS times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

LAYERS = 6  # of brackets, markdown and commands around an answer

_COMMAND = re.compile(r"\\(?:boxed|fbox|emph|underline|operatorname|[mh]box|(?:text|math)[a-z]*+)\s*+\{([^{}]*+)\}")
_STYLE = re.compile(
    r"\\(?:(?:bf|rm|it|sf|tt|em|displaystyle|small|normalsize|[Ll]arge|[Hh]uge|checkmark)(?![A-Za-z])"
    r"|(?:text)?color\s*+\{[^{}]*+\}|(?=[{}]))"
)
_BRACKETS = {
    "(": ")",
    "[": "]",
    "{": "}",
    "<": ">",
    '"': '"',
    "'": "'",
    "\u2018": "\u2019",
    "\u201c": "\u201d",
    "\uff08": "\uff09",
    "\u3010": "\u3011",
}
_SPACING = re.compile(r"\\[ ,;:!()\[\]]|~|\\q?quad(?![A-Za-z])")
_AROUND = " \t\r\n$*_`.,:;!?\u3002\uff0c\uff0e\uff1a\uff1b\uff01\uff1f"
_SCRIPTS = str.maketrans("أبجدঅবডঢＡＢＣＤ", "ABCD" * 3)  # the letters of Gym's Arabic, Bengali and full-width prompts
_CALLED = re.compile(
    r"(?:(?:the\s+)?(?:(?:correct|final|best|right)\s+)?(?:option|choice|answer|letter)(?:\s+(?:is|(?:must|should)\s+be))?"
    r"|it\s+(?:is|(?:must|should)\s+be)|i\s+(?:choose|pick|select))(?:\s*:\s*|\s+)",
    re.IGNORECASE,
)

# A letter by itself. "A" and "I" before another word are words, unless that word continues "the answer is A".
_NO_WORD = r"(?!['\u2019-]?\w)"
_GOES_ON = "is|because|since|as|due|for|which|given|or|and|to|through|vs|rather|over|instead|but"
_NO_ARTICLE = rf"(?!(?<=[AI])\s++(?!(?:{_GOES_ON})\b)[a-z])"
_ALONE = re.compile(rf"(?<![\w'\u2019-])([A-Z]){_NO_WORD}{_NO_ARTICLE}")
_LABEL = re.compile(
    r"[(\[{<*_]*+([A-Za-z])(?:[*_\s]*+[:)\]}>]|[*_]*+\.(?!\w)|[*_\s]*+[-\u2013\u2014](?!\w)|[*_]++(?!\w))"
)
_NEXT = re.compile(
    r"[\s)\]}>*_`$\"'\u201d\u2019.:?]*+(?:(?P<list>[/|&+\u2192]|->|,?\s*+(?:or|and|to|through|vs)\b)|[,;\u2013\u2014-])?+"
    r"[\s(\[{<*_`$\"'\u201c\u2018]*+(?:(?i:option|choice|letter)\s++[(\[*_]*+)?+"
    rf"(?P<letter>[A-Za-z]){_NO_WORD}(?P<clause>\s++(?!(?:or|and|are|were|both|all)\b)[a-z])?+"
)
_DENIED = re.compile(
    r"\b(?:not|no|none|nor|neither|never|cannot|except|anything|wrong|incorrect)\b|n['\u2019]t\b", re.IGNORECASE
)
_DENIES_IT = re.compile(r"\W*+(?:is|was)(?:n['\u2019]t\b|\s++(?:not|wrong|incorrect)\b)", re.IGNORECASE)
_OR_MAYBE = re.compile(
    r"(?:\A\W*+or|\b(?i:maybe|perhaps|possibly|alternatively|(?:might|may|could)\s++(?:also\s++)?be))\b"
    rf"(?:\W++\w++){{0,2}}?\W++([A-Z]){_NO_WORD}{_NO_ARTICLE}"
)
_OTHERWISE = re.compile(r"\b(?i:otherwise|else|then)\W++([A-Z])(?=\W*+\Z)")
_OTHER_LABEL = re.compile(r"(?:[.,;/|&+\n][ \t]*+(?:(?:or|and)[ \t]++)?+|\bor[ \t]++)[(\[{*_]*+([A-Z])[*_\s]*+[:)\]]")
_NEW_SENTENCE = re.compile(r"[)\]*_]*+[.!]\s++[A-Z]\b[^.]*?\b(?!and\b)[a-z]{3,}")  # "B. C and D are wrong"
_ASIDE = re.compile(r"\([^()]{2,}+\)")
_LETTER_FIRST = re.compile(r"[(\[{<*_]*+([A-Za-z])(?!\w)[)\]}>*_\s.,:;=\u2013\u2014-]*+")


def folded(text: str) -> str:
    return " ".join(text.casefold().split())


def unwrapped(text: str) -> str:
    r"""`text` without what surrounds a bare answer: `\text{}`, markdown, dollars, brackets, stops and "Option"."""
    for _ in range(LAYERS):
        inner = (_without_latex(text) if "\\" in text or "~" in text else text).strip(_AROUND)
        if len(inner) > 1 and _BRACKETS.get(inner[0]) == inner[-1]:
            inner = inner[1:-1]
        if called := _CALLED.match(inner):
            inner = inner[called.end() :]
        if inner == text:
            break
        text = inner
    return text


def _without_latex(text: str) -> str:
    return _COMMAND.sub(r"\1", _STYLE.sub("", _SPACING.sub(" ", text)))


_folded = lru_cache(maxsize=4096)(folded)  # of options


@lru_cache(maxsize=4096)
def _bare(option: str) -> str:
    return folded(unwrapped(option))


def option_letter(text: str, options: Mapping[str, str]) -> str | None:
    """The option whose letter is all that `text` says; None for anything else."""
    if (bare := text.upper()) in options:
        return bare
    letter = unwrapped(text).translate(_SCRIPTS).upper()
    return letter if letter in options else None


def option_texts(text: str, options: Mapping[str, str]) -> set[str]:
    """The options whose text is all that `text` says."""
    said, bare = folded(text), folded(unwrapped(text))
    same = {letter for letter, option in options.items() if _folded(option) == said}
    return same or {letter for letter, option in options.items() if _bare(option) == bare}


def option_named(text: str, options: Mapping[str, str]) -> str | None:
    """As `option_letter`, or the one option whose text, with or without its letter, is all that `text` says."""
    if letter := option_letter(text, options):
        return letter
    same = option_texts(text, options)
    return same.pop() if len(same) == 1 else letter_and_text(unwrapped(text), options)


def letter_and_text(text: str, options: Mapping[str, str]) -> str | None:
    """The option whose letter and text are all that `text` says."""
    first = _LETTER_FIRST.match(text)
    letter = first[1].upper() if first else ""
    return letter if first and letter in option_texts(text[first.end() :], options) else None


def labelled(text: str, options: Mapping[str, str]) -> str | None:
    """The option of `text` that is a letter, or a letter, a mark and more: "B", "B: a cat", "(B) a cat"."""
    if letter := option_letter(text, options):
        return letter
    said = unwrapped(text)
    if letter := letter_and_text(said, options):
        return letter
    label = _LABEL.match(said)
    means = options_after(said, label.span(1), options) | option_texts(text, options) if label else set()
    return means.pop() if len(means) == 1 else None


def options_meant(text: str, options: Mapping[str, str]) -> set[str]:
    """The options that the rest of an "Answer:" line may mean: one, none, or several if it does not decide."""
    if letter := option_named(text, options):
        return {letter}
    said = unwrapped(text)
    begins = len(said) - len(said.lstrip("([{<*_`$\"'\u201c"))
    if first := _LABEL.match(said) or _ALONE.match(said, begins):
        return options_after(said, first.span(1), options)
    denied = _DENIED.search(said)
    named = [
        letter for letter in _ALONE.finditer(said, 0, denied.start() if denied else len(said)) if letter[1] in options
    ]
    means = {letter[1] for letter in named}
    return options_after(said, named[0].span(1), options) if len(means) == 1 else means


def options_after(text: str, letter: tuple[int, int], options: Mapping[str, str]) -> set[str]:
    """The option whose letter is at `letter` of `text`, and those with which the text after it competes."""
    named, rest = text[slice(*letter)].upper(), text[letter[1] :]
    if named not in options or _DENIES_IT.match(rest):
        return set()
    first = _LETTER_FIRST.match(text, letter[0])
    beside = option_texts(text[first.end() :], options) if first else set()
    beside |= option_texts(text[: letter[0]].rstrip("([{<*_ "), options)
    hedges = (*_OR_MAYBE.finditer(rest), *_OTHERWISE.finditer(rest), *_OTHER_LABEL.finditer(_ASIDE.sub("", rest)))
    others = {hedge[1] for hedge in hedges}
    return (
        {named} | listed_letters(text, letter, options) | others & set(options) | (set() if named in beside else beside)
    )


def listed_letters(text: str, letter: tuple[int, int], options: Mapping[str, str]) -> set[str]:
    """The options in the list that `letter` begins, as in "A/B", "A, B" and "A or B", but not in "A, B is wrong"."""
    found: set[str] = set()
    capital, end = text[slice(*letter)].isupper(), letter[1]
    if _NEW_SENTENCE.match(text, end):
        return found
    while (after := _NEXT.match(text, end)) and after["letter"].upper() in options:
        if (capital and after["letter"].islower()) or (after["clause"] and not after["list"]):
            break
        found.add(after["letter"].upper())
        end = after.end("letter")
    return found
