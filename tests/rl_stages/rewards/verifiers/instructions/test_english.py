import pytest

from cascade_rl.rl_stages.rewards.verifiers.instructions.english import is_english, language_of

ENGLISH = """
the cat sat on the mat.
hello
good morning
small cat
nice warm room
dear madam
my answer is maybe.
1. buy milk 2. call mom
best regards, john
photosynthesis converts light energy into chemical energy
""".strip().split("\n")

OTHERS = """
\u044d\u0442\u043e \u043d\u0435 \u0430\u043d\u0433\u043b\u0438\u0439\u0441\u043a\u0438\u0439
\u03b1\u03c5\u03c4\u03cc \u03b4\u03b5\u03bd \u03b5\u03af\u03bd\u03b1\u03b9 \u03b1\u03b3\u03b3\u03bb\u03b9\u03ba\u03ac
bonjour
hola
guten tag
le chat est petit
une table pour deux personnes
el hombre tiene un perro y una casa en espa\u00f1a
l'uomo ha un cane e una casa in italia
die hand ist warm und der wind ist kalt im winter
mein name ist hans und ich bin im garten
in het park is een man met een hond
vi har en hund og en kat i vores hus
o homem tem um cachorro e uma casa no brasil
con m\u00e8o nh\u1ecf
123
""".strip().split("\n")


@pytest.mark.parametrize("text", ENGLISH)
def test_english_is_english(text):
    assert is_english(text)


@pytest.mark.parametrize("text", OTHERS)
def test_other_languages_are_not(text):
    assert not is_english(text)


def test_the_same_text_is_always_of_the_same_language():
    assert len({language_of("bonjour ok") for _ in range(20)}) == 1
