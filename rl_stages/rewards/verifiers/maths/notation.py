r"""One notation for what LaTeX and Unicode write in many ways: spaces, bold, colours, signs, thousands.

Nothing here changes what an answer says.
"""
# ruff: noqa: RUF001 (the ambiguous characters are what is replaced)

import re

_SIGNS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "∕": "/", "⁄": "/", "π": r"\pi ",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\neq ", "≈": r"\approx ", "≡": r"\equiv ", "±": r"\pm ",
    "∓": r"\mp ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "°": r"^\circ ", "º": r"^\circ ",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ", "μ": r"\mu ", "φ": r"\phi ",
    "ω": r"\omega ", "Δ": r"\Delta ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "∑": r"\sum ",
    "∫": r"\int ", "∏": r"\prod ", "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "⟨": "(", "⟩": ")",
    "€": "$", "£": "$", "¥": "$", "₹": "$", "₫": "$", "₩": "$", "₽": "$", "¢": r"\text{cents}",
    "。": ".", "…": r"\ldots ",
}  # fmt: skip
_FULL_WIDTH = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_UNICODE = _FULL_WIDTH | str.maketrans(_SIGNS)
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ", "₀₁₂₃₄₅₆₇₈₉₋ₙ"
_FULL_SIZE = str.maketrans(_RAISED + _LOWERED, "0123456789-n" * 2)
_SMALL = re.compile(f"([{_RAISED}]+)|([{_LOWERED}]+)")
_ROOT = re.compile(r"([√∛])\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))")
_DROPPED = re.compile(
    r"\\(?:left|right|[bB]ig+[lrm]?|middle)(?![A-Za-z])\.?|\\(?:display|text|script)style(?![A-Za-z])"
    r"|\\(?:mathbf|mathit|mathsf|mathtt|mathnormal|bm|boldsymbol|pmb|bf|rm|it|tt|sf|sl|em|tiny|scriptsize|footnotesize"
    r"|small|normalsize|large|Large|LARGE|huge|Huge|underline|underbrace|ensuremath|limits|boxed|fbox|smash|[rl]lap"
    r"|math(?:open|close|rel|bin|ord|op|strut)|strut|hfill|noindent|centering|newline|therefore|checkmark|(?:black)?square|qed)"
    r"(?![A-Za-z])|\\(?:[vh]?phantom|[hv]space\*?|tag\*?|label|(?:text)?color|colorbox)\s*\{[^{}]*\}"
    r"|^\s*\\(?:implies|Rightarrow|Longrightarrow|rightarrow|to)(?![A-Za-z])|[✓✔∎■]|(?<!\\)\\(?:!\s*|[()\[\]])"
)
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|up|sl|sc)|mathrm|[mh]box|emph|operatorname)(?![A-Za-z])\s*(?=\{)"
)
_SPACE = re.compile(r"(?<!\\)\\[,;:> \n]|~|\\(?:q?quad|(?:thin|med|thick|en)space)(?![A-Za-z])|\s+")
_LISTED = re.compile(
    r"(?<=[^\s,;.:&\\])\s*\\q?quad(?![A-Za-z])(?=\s*(?:[^\s,;.:&\\(]|\\(?!text|mbox|mathrm|q?quad|mid)[A-Za-z]))"
)
_LETTER = re.compile(
    r"(?<![\d})] )(?<![\d})])\\text\s*\{\s*([A-Za-z])\s*\}|\\text\s*\{\s*([a-fi-lnp-rt-zB-EGHIM-QRSTUX-Z])\s*\}"
)
_NUMBER_IN_TEXT = re.compile(r"\\text\s*\{([^{}]*\d[^{}]*)\}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{(?:aligned|align|gathered|gather|split|equation|cases|eqnarray)\*?\}")
_DOUBLED = re.compile(r"\\(?=\\[A-Za-z])")  # rows that were escaped twice
_ROWS = re.compile(r"\\\\(?:\[\w*\])?")
_MARKUP = re.compile(r"\*\*(.*)\*\*|__(.*)__|\*(.*)\*|`(.*)`|\"(.*)\"|“(.*)”|'(.*)'", re.DOTALL)
_SAME = (
    (re.compile(r"\\(?:[dtcs]|nice)frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\{\s*([^{}]+)\\over(?![A-Za-z])\s*([^{}]+)\}"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s+([A-Za-z\d])\s*([A-Za-z\d])(?![A-Za-z\d])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\c?dots(?:[bc])?(?![A-Za-z])|\.{3,}"), r"\\ldots "),
    (re.compile(r":=|\\(?:coloneqq|triangleq)(?![A-Za-z])"), "="),
    (re.compile(r"(?<=[\w)}])\s*\*\*\s*(?=[\w({-])"), "^"),
    (re.compile(r"^(\d+)\s*_\s*\{?\s*10\s*\}?$"), r"\1"),
    (re.compile(r"(?<!\\)\bsqrt\s*(?=\{)"), r"\\sqrt"),
    (re.compile(r"\\R(?![A-Za-z])"), r"\\mathbb{R}"),
    (re.compile(r"\\(?:smallsetminus|backslash)(?![A-Za-z])|(?<=\\mathbb\{R\})\s*-\s*(?=\\\{)"), r"\\setminus "),
    (re.compile(r"\{\.\}|\\text\s*\{\.\}"), "."),
    (re.compile(r"\\num\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\(?:SI|qty)\s*\{([^{}]*)\}\s*\{\\?([^{}\\]*)\}"), r"\1\\text{ \2}"),
    (re.compile(r"\\(?:ne|not\s*=)(?![A-Za-z])|!=|\\not\s*="), r"\\neq "),
    (re.compile(r"\\(?:pounds|euro)(?![A-Za-z])"), "$"),
    (
        re.compile(r"\\varnothing|\\O(?![A-Za-z])|\\\{\s*\\\}|^\s*(?:\\text\s*\{)?\s*[Nn]o solutions?\s*\.?\s*\}?\s*$"),
        r"\\emptyset",
    ),
    (re.compile(r"^\s*(?:\\text\s*\{)?\s*[Aa]ll real(?: number)?s\s*\}?\s*$"), r"\\mathbb{R}"),
    (re.compile(r"(?<!\\text)\{\s*,\s*\}"), ","),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\langle(?![A-Za-z])"), "("),
    (re.compile(r"\\rangle(?![A-Za-z])"), ")"),
    (re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ|\\degree)|\\degree"), r"^\\circ"),
    (re.compile(r"\\(?:overline|bar)\s*\{\s*([A-Z]{2,3})\s*\}"), r"\1"),
)


def one_notation(text: str) -> str:
    """`text` in the notation that the other files here read."""
    text = _SMALL.sub(_full_size, _ROOT.sub(_root, text)).translate(_UNICODE)
    text = _LISTED.sub(",", text) if "quad" in text else text
    if _ENVIRONMENT.search(text):
        text = _ROWS.sub(",", _ENVIRONMENT.sub("", text).replace("&", ""))
    elif "\\begin" not in text:
        text = _DOUBLED.sub("", text)
    text = _TEXT.sub(r"\\text", _DROPPED.sub("", text))
    text = _LETTER.sub(r" \1\2", _SPACE.sub(" ", text))
    for pattern, replacement in _SAME:
        text = pattern.sub(replacement, text)
    return _bare(_NUMBER_IN_TEXT.sub(r" \1 ", text))


def _root(root: re.Match[str]) -> str:
    return f"\\sqrt{'[3]' if root[1] == '∛' else ''}{{{root[2] or root[3]}}}"


def _full_size(digits: re.Match[str]) -> str:
    return f"{'^' if digits[1] else '_'}{{{digits[0].translate(_FULL_SIZE)}}}"


def _bare(text: str) -> str:
    """Without Markdown, dollar signs of mathematics, and the full stop of a sentence."""
    dollars = text.count("$") - text.count("\\$")
    text = text if dollars < 2 else re.sub(r"(?<!\\)\$", " ", text)
    text = text.replace("\\$", "$").strip().rstrip(" .,;:\\")
    if markup := _MARKUP.fullmatch(text):
        return _bare(next(inner for inner in markup.groups() if inner is not None))
    return text
