"""Whether a text is English.

IFEval asks langdetect, which takes milliseconds and is wrong about short texts: "small cat" is Italian to it and
"good morning" Croatian. Here common words are proof enough, and langdetect decides about texts with few of them.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from langdetect import DetectorFactory, LangDetectException, detect

from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints import listed
from cascade_rl.rl_stages.rewards.verifiers.instructions.sentences import FIRST_WORDS
from cascade_rl.rl_stages.rewards.verifiers.instructions.verbs import IRREGULAR, VERBS

DetectorFactory.seed = 0

LOOKED_AT = 10_000  # characters. langdetect takes no more.
PROOF = 0.25  # of all words

_MARKS = string.punctuation + "\u201c\u201d\u2018\u2019"

_COMMON = frozenset(
    listed(
        "again age air animal apple around away baby back bad bag bank beach beautiful because bed best better big "
        "bird black blue boat body book both bottom box boy bread bright brother brown building bus business cake car "
        "cat century chair chapter child children choice church city class clean clear cloud coffee cold color common "
        "country cup dark data daughter day dead dear deep different difficult dinner dog door down early earth easy "
        "egg energy english enough evening example eye face fact false family far fast father few fire fish floor "
        "flower food foot forest free fresh friend friends front fruit full future game garden girl glass gold good "
        "great green ground group hair half hand happy hard head health heart heavy hello high hill home hope horse "
        "hot hour house human idea important island job joy key king kitchen lake land language large law left less "
        "letter life light little long lot love low lunch machine main market maybe meat medicine milk mind minute "
        "modern money month moon morning mother mountain mouth music name nature near new news nice night number "
        "ocean office old open orange order own page paper park part party past peace person phone picture plan plant "
        "poem point poor power price problem product queen question quick quiet rain red rich right river road room "
        "safe salt same school science sea season second short side simple sister sky slow small snow social soft son "
        "song sound space spring star state stone story street strong student sugar summer sun sweet system table tea "
        "teacher team thing things time tiny tonight tool top town train tree trip true truth type university useful "
        "very village voice wall warm water way weather week well white wide wind window winter wisdom woman women "
        "wonderful wood word words work world year yellow young"
    )
)
_FUNCTION = frozenset(
    listed(
        "about above again also am are aren't been being below between can't could did didn't does doesn't doing "
        "don't further has having herself himself i'll i'm i've isn't it's itself just let's might must myself off "
        "only ourselves out should than that's themselves there's they're through too was wasn't we're were what "
        "which who whom won't would you're yourself"
    )
)
# Words that are common in another language too.
_SHARED = frozenset(
    listed(
        "a am an as at baby be bus but by chat come data den die do dot era for had has hat have he her here him his "
        "hotel hut i idea image in is it land link list man me men met most name nature no not note of on once one or "
        "over page park pass per person place plan plant plus point pour rest sale sang saw see set so social some "
        "son stand star system table taste team test texte to train transport two type under up us use want war warm "
        "was we were will wind winter"
    )
)
_ENGLISH = (_COMMON | _FUNCTION | FIRST_WORDS | VERBS | IRREGULAR) - _SHARED


def is_english(text: str) -> bool:
    """Whether a lower-case text is English. One without a known language is not."""
    beginning = text[:LOOKED_AT]
    there = beginning.split()
    return _is_proven(there) or _is_proven([word.strip(_MARKS) for word in there]) or language_of(beginning) == "en"


def _is_proven(words: Sequence[str]) -> bool:
    return bool(words) and sum(map(_ENGLISH.__contains__, words)) >= PROOF * len(words)


def language_of(text: str) -> str:
    """The language of `text` by langdetect, always the same; "" if it cannot tell."""
    try:
        return detect(text[:LOOKED_AT])
    except LangDetectException:  # the detector is the check: it finds no letters to detect a language by
        return ""
