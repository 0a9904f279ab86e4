r"""The values of an answer: `x = 2 \text{ or } x = 3` has two, `(2, 3)` is one pair, `1 \pm \sqrt{2}` has two."""

import re

_WORD = r"(?:and|or)"
_TOKEN = re.compile(
    rf"\\text\s*\{{[\s,;]*(?:{_WORD}[\s,;]*|[,;]\s*)\}}|\\(?:lor|vee|land|wedge)(?![A-Za-z])|\\(?:begin|end)(?![A-Za-z])"
    r"|\\approx(?![A-Za-z])|\\sim(?:eq)?(?![A-Za-z])|\\.|[A-Za-z]+|.",
    re.DOTALL,
)
_OPEN, _CLOSE = {"{", "(", "[", "\\{", "\\begin"}, {"}", ")", "]", "\\}", "\\end"}
_SEPARATOR = re.compile(rf"\\text\s*\{{.*|\\(?:lor|vee|land|wedge|&|\\)|[,;]|{_WORD}", re.DOTALL)
_LIST_WORD = re.compile(r"^\s*(?:\\text\s*\{\s*)?(?:either|both)\b\s*\}?")
_MEMBER = re.compile(r"^(?:[^=<>(\[{]{1,20}|\([\w\s,]{1,20}\)\s*)\\in(?![A-Za-z])\s*(?=\\\{|\(|\[|\{)")
_NAMED_SET = re.compile(r"^\s*[A-Za-z]\w?\s*=\s*(?=\\\{)")
_CONDITION = re.compile(r"\||\\mid|:")
_COLUMN = re.compile(r"\\begin\s*\{([pb])matrix\}([^&]*)\\end\s*\{\1matrix\}")
_POINT = re.compile(r"^[A-Z]'?\s*(?=\()")
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")


def bracketed(text: str) -> tuple[str, str, str] | None:
    """The opening bracket, the content and the closing bracket, if one pair of brackets holds all of `text`."""
    tokens, depth = _TOKEN.findall(text.strip()), 0
    if len(tokens) < 2 or tokens[0] not in _OPEN or tokens[-1] not in _CLOSE:
        return None
    for token in tokens[:-1]:
        depth += (token in _OPEN) - (token in _CLOSE)
        if depth == 0:
            return None
    return tokens[0], "".join(tokens[1:-1]), tokens[-1]


def split_outside(text: str, separator: re.Pattern[str]) -> list[str]:
    """The pieces between tokens that match `separator` and are outside all brackets. Empty pieces are left out."""
    pieces, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in _OPEN) - (token in _CLOSE)
        if depth == 0 and separator.fullmatch(token):
            pieces.append("")
        else:
            pieces[-1] += token
    return [piece.strip() for piece in pieces if piece.strip(" .")]


def values(text: str) -> list[str]:
    r"""The elements of a list or a set, with two for each `\pm`."""
    pieces = split_outside(_LIST_WORD.sub("", _MEMBER.sub("", set_of(text) or text)), _SEPARATOR)
    return [value for piece in pieces for value in _elements(piece)]


def set_of(text: str) -> str | None:
    r"""The set that is all of `text`, or that `S =` or `x \in` gives; None if it is no set in braces."""
    found = _NAMED_SET.sub("", _MEMBER.sub("", text.strip()))
    whole = bracketed(found)
    return found if whole and whole[0] == "\\{" else None


def _elements(piece: str) -> list[str]:
    whole = bracketed(_MEMBER.sub("", piece))
    if whole and whole[0] in ("{", "\\{") and not _CONDITION.search(whole[1]) and "\\emptyset" not in whole[1]:
        return values(whole[1])
    if not _PLUS_MINUS.search(piece):
        return [piece.removeprefix("+").strip()]
    upper = piece.replace("\\pm", "+").replace("\\mp", "-")
    lower = piece.replace("\\pm", "-").replace("\\mp", "+")
    return [upper.strip().removeprefix("+").strip(), lower]


def tuple_elements(text: str) -> tuple[str, list[str]] | None:
    """The brackets and the elements of `(a, b)` or of an interval; None if `text` is no such thing."""
    whole = bracketed(text)
    if whole is None or whole[0] not in ("(", "[") or whole[2] not in (")", "]"):
        return None
    elements = split_outside(whole[1], _SEPARATOR)
    return (whole[0] + whole[2], elements) if len(elements) > 1 else None


def listed_elements(text: str) -> list[str] | None:
    """The elements of `(a, b)` or `[a, b, c]` as a list; None of an interval such as `[a, b]`."""
    pair = tuple_elements(text)
    return pair[1] if pair and (pair[0] == "()" or len(pair[1]) > 2) else None


def as_tuple(text: str, other: str) -> str:
    """`(1, 2)` of a column vector or of the point A(1, 2), if `other` is a tuple; otherwise `text`."""
    if tuple_elements(other) is None:
        return text
    column = _COLUMN.fullmatch(text.strip())
    return f"({column[2].replace('\\\\', ', ')})" if column else _POINT.sub("", text)
