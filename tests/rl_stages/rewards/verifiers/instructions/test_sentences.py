import pytest

from cascade_rl.rl_stages.rewards.verifiers.instructions.sentences import sentences, stop_of

# sentences, each written on a line of its own
TEXTS = """
I chose plan B.|It worked.
We chose plan B.|Dogs bark.
So did I.|Dogs bark.
Plan B.|Dogs bark.|See Appendix A.|Tables follow.
John F. Kennedy met J. R. R. Tolkien.|They talked.
It is by J. Smith.|See M. A. Jones (2013).
We bought apples, pears, etc.|Then we left.
We bought apples, pears, etc.|Dogs bark.
She lives in the U.S.|He lives in France.
The U.S. Army is big.|U.S. law is hard.
He met Dr. Lee at 5 p.m. on Monday.
It was 5 p.m.|They left.
It is at 9 a.m.|Bring coffee.
We meet at 9 a.m. Monday or 5 p.m. EST.
In Jan. we met.|In Feb. we parted.
Smith et al. wrote it.|No. 5 is that.|We said no.|Five left.
Add 5 oz. of milk and 2 tbsp. of sugar.|Add 5 oz.|Stir.
He is 6 ft. tall and runs 5 mi.|Stop.
Est. 1990.|Ch. 2 has max. 5 pages.|That is the max.|Dogs bark.
He works at Acme Inc.|He likes it.
Acme Inc. shares rose.|Mr. Brown vs. Mrs. White.
He lives in Main St.|They like St. Louis.
He has a Ph.D.|She has none.
Use a fruit, e.g. apples.|Or i.e. pears, as in Fig. 3 shows.
He said \u201cGo.\u201d|Then he left.
(I know.)|**Bold.**|_It is._|Then more.
Wait... what?|No...|Yes.
Well\u2026 maybe.|Well\u2026|Maybe.
Really?!|Yes!|"Why?"|he asked.
It costs 3.50.|It has 2.
Hello \U0001f600.|Yes!|\U0001f30d
No stop
""".strip().split("\n")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("gap", [" ", "\n", "\n\n  "])
def test_sentences_end_at_stops_but_not_at_abbreviations_and_initials(text, gap):
    assert sentences(text.replace("|", gap)) == text.split("|")


@pytest.mark.parametrize(
    ("text", "found"), [("", []), (". . . .", []), ("Yes. . .", ["Yes. . ."]), ("Yes.\n```", ["Yes.\n```"])]
)
def test_punctuation_is_no_sentence(text, found):
    assert sentences(text) == found


@pytest.mark.parametrize(
    ("sentence", "sign"), [("Go.", "."), ("\u201cGo!\u201d", "!"), ("**Why?**", "?"), ("Go", "o"), ("-", "")]
)
def test_the_stop_of_a_sentence_is_before_what_closes_it(sentence, sign):
    assert stop_of(sentence) == sign
