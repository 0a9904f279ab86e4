"""The three constraints that need knowledge of language: the language of a text, verbs, and syllables.

Differences from the originals, which use langdetect without a seed, NLTK's tagger and a syllable counter:

- `language:response_language`: a text whose language cannot be detected fails; IFEval passes it. The same text always
  gets the same result, and a language that the detector does not know is an error when the row is read.
- `words:start_verb`: the first word must be a form of one of the verbs below, even if it could also be a noun.
- `words:odd_even_syllables`: syllables are counted by rules and a table of exceptions. A word with characters other
  than English letters fails, and so does an answer of one word.
"""

from __future__ import annotations

import re
from itertools import pairwise

from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints import bare_words, instruction, listed
from cascade_rl.rl_stages.rewards.verifiers.instructions.english import language_of
from cascade_rl.rl_stages.rewards.verifiers.instructions.verbs import IRREGULAR, VERBS

LANGUAGES = frozenset(
    listed(
        "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr ne nl no pa "
        "pl pt ro ru sk sl so sq sv sw ta te th tl tr uk ur vi zh zh-cn zh-tw"
    )
)

# Words that break the rules below, by their number of syllables.
EXCEPTIONS = {
    1: "are were where there here some come done gone none one once axe eyes eye shoes goes lied tried hour fire",
    2: "being quiet science create poet poem lion giant diet fuel cruel people business evening something someone "
    "sometimes somewhere therefore maybe movies chocolate every cookie",
    3: "area idea another piano really museum family everyone everything animal several created interesting different",
    4: "society variety usually reality actually january february",
}
SYLLABLES = {word: count for count, words in EXCEPTIONS.items() for word in words.split()}


# Applied one after another: e of -ed, -es, before a suffix, and at the end except in -le after a consonant.
SILENT = (
    r"(?<=[^td])ed$",
    r"(?<![cgsxz])(?<![cs]h)es$",
    r"(?<=[^aeiouy])e(?=(ly|ment|less|ful|ness)$)",
    r"(?<=[^aeiouy])(?<![^aeiouy]l)e$",
)
# Letters that are spoken as one syllable more than their runs of vowels.
SAID_APART = r"(?<![cgst])i[aou](?!n$)|(?<=[^gq])ua(?!r)|(?<!g)eo(?=$|[lmn])|(?<=[aeiou])y(?=[aeiou])|(?:s|th)m$"


@instruction("language:response_language")
def response_language(answer: str, *, language: str) -> bool:
    return language_of(answer).startswith(language)


@instruction("words:start_verb")
def start_verb(answer: str) -> bool:
    first = re.match(r"[\W_]*([a-z]+)", answer.lower())
    return first is not None and is_verb(first[1])


def is_verb(word: str) -> bool:
    """Whether a lower-case word is a form of a verb above."""
    return word in IRREGULAR or any(base in VERBS for base in _bases(word))


def _bases(word: str) -> list[str]:
    """The words that this may be a regular form of, itself included."""
    bases = [word]
    for suffix in ("ing", "ed", "es", "s", "d"):
        if word.endswith(suffix):
            stem = word.removesuffix(suffix)
            bases += [stem, stem + "e", stem[:-1] + "ie" if suffix == "ing" else stem]
            bases += [stem[:-1]] if stem[-1:] == stem[-2:-1] else []
            bases += [stem[:-1] + "y"] if stem.endswith("i") else []
    return bases


@instruction("words:odd_even_syllables")
def odd_even_syllables(answer: str) -> bool:
    there = bare_words(answer)
    if len(there) < 2 or not all(re.fullmatch("[a-z]+", word) for word in there):
        return False
    return all((syllables(a) + syllables(b)) % 2 for a, b in pairwise(there))


def syllables(word: str) -> int:
    """Syllables of a lower-case English word: its runs of vowels without silent endings, plus vowels spoken apart."""
    if word in SYLLABLES:
        return SYLLABLES[word]
    spoken = word
    for ending in SILENT:
        spoken = re.sub(ending, "", spoken)
    return max(len(re.findall("[aeiouy]+", spoken)) + len(re.findall(SAID_APART, spoken)), 1)
