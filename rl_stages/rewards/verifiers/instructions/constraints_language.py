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

from langdetect import DetectorFactory, LangDetectException, detect

from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints import bare_words, instruction
from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints_ifbench import listed

DetectorFactory.seed = 0

LANGUAGES = frozenset(
    listed(
        "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr ne nl no pa "
        "pl pt ro ru sk sl so sq sv sw ta te th tl tr uk ur vi zh zh-cn zh-tw"
    )
)

VERBS = frozenset(
    listed(
        "accept achieve act adapt add address adjust admit adopt advise agree aim allow analyze announce answer "
        "apply approach argue arrange arrive ask assemble assess assign assume attach attempt attend avoid bake "
        "balance base beat begin believe belong blend boil book borrow break breathe bring browse build burn buy "
        "calculate call care carry catch cause celebrate challenge change charge chat check choose chop clean "
        "clear click climb close collect combine come compare complete compose compute conduct confirm connect "
        "consider consist contact contain continue contribute convert cook cool copy count cover create cross cut "
        "dance deal decide define delete deliver depend describe design destroy determine develop die dig discover "
        "discuss display divide do draft draw dream dress drink drive drop earn eat edit embrace employ empty "
        "enable encourage end enjoy ensure enter establish estimate evaluate examine exercise exist expand expect "
        "experience explain explore express extend face fail fall feel fetch fight figure fill find finish fit fix "
        "fly focus fold follow forget forgive form gain gather generate get give go grab grow guard guess guide "
        "handle hang happen hate have head hear heat help hide highlight hit hold hope hunt identify ignore "
        "imagine implement improve include increase indicate inform insert inspire install introduce invest "
        "investigate invite involve join judge jump keep kick kill kiss knock know laugh launch lay lead lean "
        "learn leave lend let lie lift light like limit link list listen live load locate look lose love lower "
        "maintain make manage mark marry master match mean measure meet mention mix modify monitor move multiply "
        "name need note notice obey observe obtain occur offer open order organize overcome own pack paint "
        "participate pass pause pay perform permit pick place plan plant play pour practice prefer prepare present "
        "press prevent print proceed process produce promise promote propose protect prove provide pull pursue "
        "push put quit raise reach read realize receive recognize recommend record reduce refer reflect refuse "
        "reject relax release rely remain remember remind remove repair repeat replace reply report represent "
        "request require research resolve respect respond rest restore retain return reveal review ride rinse rise "
        "roll run save say scan schedule search see seek seem select sell send separate serve set settle shake "
        "shape share shift shine show shut sing sit sleep slice smile solve sort speak specify spend split spread "
        "stand start state stay steal step stick stir stop store strengthen strike struggle study submit subtract "
        "succeed suffer suggest summarize supply support suppose surround survive swim switch take talk taste "
        "teach tell tend test thank think throw touch track train transfer transform translate travel treat trust "
        "try turn type understand unite unlock update upgrade use utilize validate verify view visit wait wake "
        "walk want warm warn wash waste watch wear weigh welcome win wish wonder work worry wrap write"
    )
)
IRREGULAR = frozenset(
    listed(
        "am are be been began begun being bought broke broken brought built came caught chose chosen did does don "
        "done drank drew drove eaten ate felt fell flew forgot fought found gave given gone got grew grown had has "
        "heard held hid is kept knew known laid led left lent lost made meant met paid ran rose said sang sat saw "
        "seen sent shone shook shown slept sold sought spent spoke spoken stood stole struck swam taken taught "
        "thought threw told took understood was went were woke won wore wrote written"
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
    try:
        return detect(answer).startswith(language)
    except LangDetectException:  # the detector is the check: it finds no letters to detect a language by
        return False


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
