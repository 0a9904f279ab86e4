r"""The expressions of JSON schema, which are ECMA-262's, as Python's (JSON Schema 2020-12 core, section 6.4).

`\d`, `\w` and `\b` are about ASCII alone, `\s` is any white space of Unicode, `$` is the end of the text and not also
the place before a newline at the end, and `.` is no end of a line. `\p{L}`, `\cA` and `[]` have no form in Python, so
`re` refuses them.
"""

import re

# Inside of brackets.
_SPACE = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_NO_SPACE = (
    r"\0-\x08\x0e-\x1f!-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\ufefe"
    r"\uff00-\U0010ffff"
)
_INSIDE = {r"\s": _SPACE, r"\S": _NO_SPACE, "[": r"\[", "[^": r"\[^"}
_OUTSIDE = {
    r"\s": f"[{_SPACE}]", r"\S": f"[{_NO_SPACE}]", "$": r"\Z", ".": r"[^\n\r\u2028\u2029]", "(?<": "(?P<",
}  # fmt: skip
_TOKEN = re.compile(r"\\.|\[\^?|\(\?<(?![=!])|.", re.DOTALL)


def python_pattern(pattern: str) -> str:
    """`pattern` as an expression of `re` that finds the same."""
    parts, inside = [], False
    for token in _TOKEN.findall(pattern):
        parts.append((_INSIDE if inside else _OUTSIDE).get(token, token))
        inside = token != "]" if inside else token in ("[", "[^")
    return f"(?a:{''.join(parts)})"
