r"""Inequalities that `or` joins, as a union of intervals: `x < -1 or x > 1` is (-\infty, -1) \cup (1, \infty)."""

import re

_OR = re.compile(r"\\text\s*\{\s*or\s*\}|\\(?:lor|vee)(?![A-Za-z])|\bor\b")
_RELATION = re.compile(r"(<=|>=|<|>|\\(?:leq?|geq?)(?:slant|q)?(?![A-Za-z])|\\[lg]t(?![A-Za-z]))")
_INTERVAL = re.compile(r"[(\[].*,.*[)\]]", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z]|\\(?:theta|alpha|beta|lambda|mu)")
_BUILDER = re.compile(
    r"\\\{\s*([a-z])\s*(?:\\in\s*\\mathbb\s*\{R\}\s*)?(?:\||\\mid|:)\s*((?=.*\1).*?)\s*\\\}", re.DOTALL
)
_CONDITION = re.compile(r"\\\{((?:(?!\\mid)[^|:])+)(?:\||\\mid|:)((?:(?!\\mid)[^|:])+)\\\}")
LEAST, GREATEST = "(-\\infty", "\\infty)"


def condition(text: str) -> str:
    r"""`x > 0` of \{x \mid x > 0\}, `1 < x < 2` of 2 > x > 1; `text` alone if it is neither."""
    if builder := _BUILDER.fullmatch(text):
        text = builder[2]
    parts = _RELATION.split(text)
    if len(parts) == 5 and all(relation.lstrip("\\")[0] in ">g" for relation in parts[1::2]):
        return "".join(part.replace(">", "<").replace("\\g", "\\l") for part in reversed(parts))
    return _CONDITION.sub(r"\{\1\\mid \2\}", text)


def same_sets(text: str, other: str) -> str:
    """`text` as a union of intervals if it is inequalities and `other` is intervals; otherwise `text`."""
    if not _INTERVAL.search(other) or _RELATION.search(other):
        return text
    pieces = [_interval(piece) for piece in _OR.split(text)]
    if len(pieces) < 2 or None in pieces or len({piece[0] for piece in pieces if piece}) > 1:
        return text
    return " \\cup ".join(piece[1] for piece in pieces if piece)


def _interval(piece: str) -> tuple[str, str] | None:
    """The variable of an inequality and what it may be; None if `piece` is none."""
    parts = [part.strip() for part in _RELATION.split(piece)]
    places = [place for place in range(0, len(parts), 2) if _VARIABLE.fullmatch(parts[place])]
    if len(parts) not in (3, 5) or len(places) != 1 or not all(parts) or (len(parts) == 5 and places != [2]):
        return None
    lower, upper = LEAST, GREATEST
    for place in range(1, len(parts), 2):
        bound, relation = parts[place + 1 if place > places[0] else place - 1], parts[place]
        closed, greater = relation[-1:] not in "<>t" or relation.endswith("slant"), relation.lstrip("\\")[0] in ">g"
        if greater == (place > places[0]):
            lower = f"{'[' if closed else '('}{bound}"
        else:
            upper = f"{bound}{']' if closed else ')'}"
    return parts[places[0]], f"{lower},{upper}"
