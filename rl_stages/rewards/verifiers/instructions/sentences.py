"""Where the sentences of an English text end.

IFEval and IFBench ask NLTK's punkt, whose model is not part of a package. These rules follow what punkt does: a full
stop ends a sentence, except after an abbreviation or an initial that no common first word follows. Differences:

- Punctuation alone is no sentence: ". . ." is none. punkt counts each stop of it.
- Closing quotes, brackets and asterisks belong to their sentence, also curly ones and those of markdown.
- "plan B. Dogs bark" has two sentences and "by J. Smith" is part of one. punkt decides by the frequency of "Dogs".
- Some abbreviations that punkt lacks, such as "e.g.", "Fig." and "Ph.D.", end no sentence.
"""

from __future__ import annotations

import re
import string

from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints import listed

NEAR = 24  # characters around a full stop that are looked at: more than an abbreviation or a first word has
STOPS = ".!?\u2026"

_GAP = re.compile(r"[.!?\u2026][\"')\]*_`\u201d\u2019\u00bb]*+\s++")
_PUNCTUATION = string.punctuation + STOPS + "\u201c\u201d\u2018\u2019\u00ab\u00bb\u2013\u2014 \t\n"
_SAID = re.compile(rf"[^{re.escape(_PUNCTUATION)}]")
_OPENING = "\"'([*_`\u201c\u2018\u00ab\u2013\u2014-"
_FIRST_WORD = re.compile(r"[\W_]{0,8}((?![^\W\d_]\.)[^\W\d_]+)")  # an initial is none
_INITIALS = re.compile(r"[^\W\d_](?:\.[^\W\d_])+")  # e.g., U.S, p.m

# Before a name or an example, so never at an end.
_TITLES = frozenset(listed("capt cf col dr e.g gen gov hon i.e lt messrs mr mrs ms mt mx pres prof rep rev sen sgt vs"))
_ABBREVIATIONS = frozenset(
    listed(
        "approx apr aug ave blvd bros co corp dec dept eq feb fig figs inc jan jr jul jun ltd nov oct ph.d pp rd "
        "sep sept sr st thu thurs tue tues vol"
    )
)
# Before what they measure or number, but also at an end if a capital follows.
_SHORT_FORMS = frozenset(
    listed(
        "al avg ca ch cu deg est etc excl ext ft hr hrs incl lb lbs max min mins misc nos oz pt qt qty sec secs sq "
        "tbsp tel tsp viz"
    )
)
_HOURS = ("a.m", "p.m")
_AFTER_HOURS = frozenset(listed("friday fri mon monday sat saturday sun sunday thu thursday tue tuesday wed wednesday"))
# Before a letter that belongs to them, also where they begin a sentence: "Plan B".
_LABELLED = frozenset(listed("appendix choice class exhibit grade group option part plan section team type vitamin"))
_SHORTENED = _ABBREVIATIONS | _SHORT_FORMS
# Words that often begin a sentence and are seldom part of a name.
FIRST_WORDS = frozenset(
    listed(
        "a about according additionally after all also although always an and another any anyone anything are as at "
        "because before being both but by can could did do does each either even every everybody everyone everything "
        "finally first for from furthermore had has have he hence her here hers his how however i if in instead is it "
        "its last later let like many maybe me meanwhile more moreover most much my neither never nevertheless next "
        "no nobody none nor not nothing now of on once one only or other others our over overall people perhaps "
        "please second see several shall she should similarly since so some somebody someone something sometimes soon "
        "still such thank thanks that the their theirs them then there therefore these they third this those though "
        "through thus to today together tomorrow too two under unless until upon us very was we well were what "
        "whatever when whenever where whether which while who whoever whom whose why will with within without would "
        "yes yesterday yet you your yours"
    )
)


def sentences(text: str) -> list[str]:
    """The sentences of `text`, stripped, each with its stop and what closes it.

    A piece of nothing but punctuation belongs to the sentence before it.
    """
    found: list[tuple[int, int]] = []
    start = 0
    ends = [gap.end() for gap in _GAP.finditer(text) if ends_sentence(text, gap.start(), gap.end())]
    for end in [*ends, len(text)]:
        if _SAID.search(text, start, end):
            found.append((start, end))
        elif found:
            found[-1] = (found[-1][0], end)
        start = end
    return [text[start:end].strip() for start, end in found]


def ends_sentence(text: str, stop: int, following: int) -> bool:
    """Whether the stop at `stop` ends a sentence, if the next word begins at `following`."""
    if text[stop] in "!?":
        return True
    near = text[max(stop - NEAR, 0) : stop]
    if text[stop] == "\u2026" or near.endswith("."):
        return _first_word(text, following)[:1].isupper()
    before = near.rsplit(maxsplit=2) if near[-1:].strip() else []
    last = before[-1].lstrip(_OPENING) if before else ""
    low = last.lower()
    if low in _TITLES:
        return False
    if low == "no":
        return not text[following : following + 1].isdigit()
    letter = len(last) == 1 and last.isalpha()
    if not letter and low not in _SHORTENED and not ("." in low and _INITIALS.fullmatch(low)):
        return True  # most stops; the word behind them does not count
    first = _first_word(text, following)
    if first.lower() in FIRST_WORDS or not first[:1].isupper():
        return first[:1].isupper()
    if low in _HOURS:
        return first.lower() not in _AFTER_HOURS and not first.isupper()  # "5 p.m. EST"
    return len(first) > 1 and _is_label(last, before[-2:-1]) if letter else low in _SHORT_FORMS


def _first_word(text: str, start: int) -> str:
    first = _FIRST_WORD.match(text, start, start + NEAR)
    return first[1] if first else ""


def _is_label(letter: str, before: list[str]) -> bool:
    """Whether a letter belongs to the word before it, as in "plan B" and "did I", and not to the name after it."""
    word = before[0] if before else ""
    return word.lower() in _LABELLED or (word.islower() and (letter == "I" or word not in FIRST_WORDS))


def stop_of(sentence: str) -> str:
    """The sign that ends `sentence`; its last letter or digit if there is none."""
    return next((sign for sign in reversed(sentence) if sign in STOPS or sign.isalnum()), "")
