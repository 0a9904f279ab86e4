r"""What an answer may not be: unevaluated, or about the number instead of the number.

A numeric answer is a value. Where a rational number is expected, only a numeral is one (`numerals.py`). Where another
closed form is expected, numbers, roots, powers, products and sums of them, `\pi`, `e` and `i` are, since no form of
such a value is *the* form. An operation that still has to be carried out is part of a value only if the expected answer
has it too: a sum, product, integral, limit, derivative, determinant, factorial, binomial, floor, maximum, greatest
divisor, remainder. Elementary functions (`\log 2`, `\sin 1`) are one family: allowed where the expected answer has any
of them, or a power of `e`.
"""

import re

_OPERATIONS = {
    "integral": r"\\i*int(?![A-Za-z])|\\oint",
    "sum": r"\\sum(?![A-Za-z])",
    "product": r"\\prod(?![A-Za-z])",
    "limit": r"\\lim(?![A-Za-z])|\blim\b",
    "derivative": r"\\frac\s*\{\s*\\?(?:partial|mathrm\{d\}|d)\s*\}|\\frac\s*\{\s*d\s*\^?\s*\d?\s*[a-z]?\s*\}\s*\{\s*d",
    "determinant": r"\\det(?![A-Za-z])|\bdet\b|vmatrix",
    "trace or rank": r"\b(?:tr|rank|dim)\b(?=\s*\}?\s*[({\\])",
    "factorial": r"!(?!=)",
    "binomial": r"\\[dt]?binom|\{\s*\w+\s*\\choose|\bC\s*\(\s*\d+\s*,",
    "floor": r"\\l(?:floor|ceil)|\bfloor\b|\bceil\b|⌊|⌈",
    "extremum": r"\\(?:max|min|sup|inf)(?![A-Za-z])|\b(?:max|min)\b(?=\s*\}?\s*[({\\])",
    "divisor": r"\\gcd|\b(?:gcd|lcm)\b",
    "remainder": r"\\[bp]?mod(?![A-Za-z])|\bmod\b",
}
_OPERATION = {name: re.compile(pattern) for name, pattern in _OPERATIONS.items()}
_FUNCTION = re.compile(r"\\?(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?(?![A-Za-z])|\\?(?:log|ln|lg|exp)(?![A-Za-z])")
_POWER_OF_E = re.compile(r"(?<![A-Za-z\\])e(?![A-Za-z])")
_RELATIONS = {
    "inequality": r"\\(?:n?[lg]e?q?(?:slant|q)?|lt|gt|n?less|n?gtr)(?![A-Za-z])|[<>]",
    "negation": r"\\neq|\\not(?:in)?(?![A-Za-z])|\\lnot|\\neg"
    r"|(?<![A-Za-z])(?:not?|never|neither|isn't|except)(?![A-Za-z])",
    "congruence": r"\\equiv|\\[bp]?mod(?![A-Za-z])|(?<![A-Za-z])mod(?![A-Za-z])",
    "arrow": r"\\(?:to|rightarrow|mapsto|implies|Rightarrow|iff|Leftrightarrow)(?![A-Za-z])",
    "proportion": r"\\propto",
    "bound": r"(?<![A-Za-z])(?:less|more|greater|fewer|least|most|between|exceeds|up to)(?![A-Za-z])",
    "base": r"(?<=[\d)])\s*_\s*\{?\s*(?:\d|\\text)|(?<![A-Za-z])base(?![A-Za-z])",
}
_RELATION = {name: re.compile(pattern) for name, pattern in _RELATIONS.items()}
_APPROACHED = re.compile(r"\\lim\s*_\s*\{[^{}]*\}")
_SETS = re.compile(
    r"\\(?:cup|cap|in|mathbb|setminus|emptyset|infty|forall|neq?|leq?|geq?|lt|gt)(?![A-Za-z])|[<>\[\]]|^\s*\("
)


def unevaluated(given: str, expected: str) -> str | None:
    """The operation in `given` that `expected` does not have, or None."""
    for name, pattern in _OPERATION.items():
        if pattern.search(given) and not pattern.search(expected):
            return name
    elementary = _FUNCTION.search(expected) or _POWER_OF_E.search(expected)
    return "function" if _FUNCTION.search(given) and not elementary else None


def other_statement(given: str, expected: str) -> str | None:
    """The relation around the value in `given` that `expected` does not have, or None."""
    given = _APPROACHED.sub("", given)
    for name, pattern in _RELATION.items():
        if pattern.search(given) and not pattern.search(expected):
            if name in ("inequality", "negation") and _SETS.search(expected):
                continue
            return name
    return None
