r"""Equations that name a value: `x = 5`, `f(x) = 2x + 1`, `A = \pi r^2 = 25\pi`."""

import re

from cascade_rl.rl_stages.rewards.verifiers.maths.parts import split_outside

_EQUALS = re.compile(r"=")
_ABOUT = re.compile(r"\\approx|\\sim(?:eq)?")
_DIGRAPHS = re.compile(r"([<>!:])=|==")
_NO_NAME = r"frac|sqrt|cdot|times|pi(?![A-Za-z])|infty|log|ln|sin|cos|tan|exp|lim|int|sum|prod|binom|det|max|min|gcd|pm"
_ATOM = (
    r"(?:\\(?:overline|vec|hat|bar|tilde|text|mathcal|mathbb|widehat|overrightarrow)\s*\{[^{}]*\}"
    rf"|\\(?!{_NO_NAME})[A-Za-z]++|[A-Za-z]++)"  # possessive: nothing is read in two ways
)
_INDEX = r"(?:\s*_\s*(?:\w|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})|'+|\s*\^\s*\{\s*-1\s*\}|\s*\^\s*\{?\\(?:prime|circ)\}?)"
_NAME = re.compile(
    rf"\|?\s*(?:{_ATOM}{_INDEX}*\s*){{1,8}}(?:\([^()=]*\))?\s*\|?|[(\[]\s*[A-Za-z]\w*(?:\s*,\s*[A-Za-z]\w*)*\s*[)\]]"
)
_EVERYWHERE = re.compile(
    r"(.*?)\s*,?\s*(?:\\text\s*\{[\s,]*for (?:all|any|every|each)[A-Za-z ]*\}|\\forall(?![A-Za-z])"
    r"|,(?=\s*[a-z]\s*\\in))"
    r"\s*[a-z]?\s*(?:\\in\s*\\mathbb\s*\{R\})?",
    re.DOTALL,
)
_REAL = re.compile(r",\s*[a-z]\s*\\in\s*\\mathbb\s*\{?R\}?\s*$")
_WHOLE = re.compile(r"\s*[,;]?\s*\(?\s*(?:\\text\s*\{[^{}]*\}\s*)?([a-z])\s*\\in\s*\\mathbb\s*\{?Z\}?\s*\)?\s*$")
_TEXT_OR_COMMAND = re.compile(r"\\text\s*\{[^{}]*\}|\\[A-Za-z]+")


def sides(text: str) -> list[str]:
    """The sides of an equation, without empty ones, a name of the last one first; `text` alone if it is none."""
    if _DIGRAPHS.search(text):
        return [text]
    found = split_outside(text, _EQUALS) or [text]
    return found[::-1] if len(found) == 2 and is_name(found[1]) and not is_name(found[0]) else found


def without_domain(text: str) -> str:
    r"""`f(x) = 2x` of "f(x) = 2x for all real x", and `k\pi` of "n\pi, n \in \mathbb{Z}", whatever its name."""
    text = _REAL.sub("", text)
    if (whole := _WHOLE.search(text)) and (left := text[: whole.start()]):
        text = re.sub(rf"(?<![\\A-Za-z]){whole[1]}(?![A-Za-z])", "k", left)
    name, equals, value = text.partition("=")
    formula = _EVERYWHERE.fullmatch(value)
    return f"{name}={formula[1]}" if equals and formula else text


def approximations(text: str) -> list[str]:
    r"""The sides of `\sqrt{10} \approx 3.16`, without empty ones."""
    return split_outside(text, _ABOUT) or [text]


def is_name(text: str) -> bool:
    r"""Whether `text` names a value: `x`, `\theta`, `S_n`, `f(x)`, `P(A)`, `AB`, `\text{area}`."""
    return bool(_NAME.fullmatch(text.strip()))


def name_of(text: str) -> str:
    """The name that the first side of an equation gives to the last one, without white space and braces, or ""."""
    first, *rest = sides(text)
    return re.sub(r"[\s{}]", "", first) if rest and is_name(first) else ""


def has_variable(text: str) -> bool:
    """Whether a letter other than `e` and `i` stands for a value in `text`."""
    return is_name(text) or bool(re.search(r"[A-Za-df-hj-z]", _TEXT_OR_COMMAND.sub("", text)))
