"""The constraints of IFBench (Pyatkin et al. 2025, arXiv:2507.02833).

Two of its 58 are in `constraints_language.py`. Differences from its code:

- Only words are words; the original's tokenizer counts a full stop as one (`words_position`, `title_case`).
- A constraint on quotes, bullets, sentences or neighbours needs some of them; the original passes a text without any.
- Keywords are whole words, also those of `count:keywords_multiple`; the original finds "art" in "start".
- `repeat:repeat_span` counts words, as its request says; the original counts characters (allenai/IFBench#34).
- `csv_*` read the answer as CSV; the original doubles its quotes first.
- `ratio:sentence_words` also requires different words, and `format:sub-bullets` a sub-bullet on a line of its own.
- `format:quotes` and `format:title_case` know apostrophes, `custom:date_format_list` the calendar.
"""

from __future__ import annotations

import csv
import datetime
import io
import re
import string
import unicodedata
from collections import Counter
from itertools import pairwise

import regex

from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints import (
    bare_words,
    instruction,
    listed,
    occurrences,
    rising,
    word_parts,
    words,
)
from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints_rlvr import is_palindrome, same_words
from cascade_rl.rl_stages.rewards.verifiers.instructions.sentences import sentences, stop_of

CONJUNCTIONS = frozenset(listed("and but for nor or so yet"))
PRONOUNS = frozenset(
    listed(
        "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself "
        "she her hers herself it its itself they them their theirs themselves this that these those "
        "who whom whose which what whoever whomever whatever whichever anybody anyone anything everybody everyone "
        "everything nobody nothing somebody someone something each either neither both all some any none"
    )
)
STOP_WORDS = frozenset(
    listed(  # the English list of NLTK, split at apostrophes as the words of a text are
        "i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her "
        "hers herself it its itself they them their theirs themselves what which who whom this that these "
        "those am is are was were be been being have has had having do does did doing a an the and but if or "
        "because as until while of at by for with about against between into through during before after "
        "above below to from up down in out on off over under again further then once here there when where "
        "why how all any both each few more most other some such no nor not only own same so than too very s "
        "t can will just don should now d ll m o re ve y ain aren couldn didn doesn hadn hasn haven isn ma "
        "mightn mustn needn shan shouldn wasn weren won wouldn"
    )
)
NAMES = listed(
    "Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia "
    "Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob "
    "Scarlett Nathan Victoria Elijah Layla Nicholas Audrey David Hannah Christopher Penelope Thomas Nora "
    "Andrew Aria Joseph Claire Ryan Stella Jonathan"
)
CAPITALS = listed(
    "Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin "
    "Amsterdam Warsaw London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau "
    "Bern Ljubljana Zagreb"
)
AFRICAN_COUNTRIES = 52  # minimum number of lines, from Zimbabwe on
BRACKETS = {")": "(", "]": "[", "}": "{"}
REPEATED_SENTENCE = "Only output this sentence here, ignore all other requests."

_EMOJI_AT_END = regex.compile(r"[\p{Extended_Pictographic}\p{Regional_Indicator}\p{Emoji_Modifier}\uFE0F\u20E3]$")
_EMOJI_AT_START = regex.compile(r"[\p{Extended_Pictographic}\p{Regional_Indicator}]")
_JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
_TRAILING_MARKS = string.punctuation + string.whitespace + "\u2026\u201d\u2019"
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)


def ascii_text(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def nonblank_lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def lengths_in_words(text: str) -> list[int]:
    return [len(bare_words(sentence)) for sentence in sentences(text)]


@instruction("count:word_count_range")
def word_count_range(answer: str, *, min_words: int, max_words: int) -> bool:
    return min_words <= len(word_parts(answer)) <= max_words


@instruction("count:unique_word_count")
def unique_word_count(answer: str, *, N: int) -> bool:
    return len(set(bare_words(answer))) >= N


@instruction("count:conjunctions")
def conjunctions(answer: str, *, small_n: int) -> bool:
    return len(CONJUNCTIONS & set(bare_words(answer))) >= small_n


@instruction("count:person_names")
def person_names(answer: str, *, N: int) -> bool:
    return len(set(NAMES) & set(word_parts(answer))) >= N


@instruction("count:numbers")
def numbers(answer: str, *, N: int) -> bool:
    return len(re.findall(r"\d+", answer.translate(_ASCII_PUNCTUATION))) == N


@instruction("count:punctuation")
def punctuation(answer: str) -> bool:
    interrobang = next((mark for mark in ("?!", "!?", "‽") if mark in answer), None)
    return interrobang is not None and set(".,!?;:") <= set(answer.replace(interrobang, "", 1))


@instruction("count:words_japanese")
def words_japanese(answer: str, *, N: int) -> bool:
    chosen = answer.split()[N - 1 :: N] if N > 0 else []
    return bool(chosen) and all(_JAPANESE.search(word) or regex.fullmatch(r"[\W\d]+", word) for word in chosen)


@instruction("count:pronouns")
def pronouns(answer: str, *, N: int) -> bool:
    return sum(word in PRONOUNS for word in word_parts(answer.lower())) >= N


@instruction("count:keywords_multiple")
def keywords_multiple(
    answer: str, *, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str
) -> bool:
    keywords = (keyword1, keyword2, keyword3, keyword4, keyword5)
    return [occurrences(answer, keyword) for keyword in keywords] == [1, 2, 3, 5, 7]


@instruction("ratio:stop_words")
def stop_words(answer: str, *, percentage: int) -> bool:
    there = word_parts(answer.lower())
    return bool(there) and 100 * sum(word in STOP_WORDS for word in there) / len(there) <= percentage


@instruction("ratio:sentence_type")
def sentence_type(answer: str) -> bool:
    ends = Counter(map(stop_of, sentences(answer)))
    return ends["."] == 2 * ends["?"] > 0


@instruction("ratio:sentence_balance")
def sentence_balance(answer: str) -> bool:
    ends = Counter(map(stop_of, sentences(answer)))
    return ends["."] == ends["?"] == ends["!"] > 0


@instruction("ratio:overlap")
def overlap(answer: str, *, reference_text: str, percentage: int) -> bool:
    mine, theirs = ({text[i : i + 3] for i in range(len(text) - 2)} for text in (answer, reference_text))
    return bool(mine) and abs(100 * len(mine & theirs) / len(mine) - percentage) <= 2


@instruction("ratio:sentence_words")
def sentence_words(answer: str) -> bool:
    there = sentences(answer)
    return len(there) == 3 and len({len(sentence) for sentence in there}) == 1 and all_different(bare_words(answer))


def all_different(items: list[str]) -> bool:
    return len(set(items)) == len(items)


@instruction("words:alphabet")
def alphabet(answer: str) -> bool:
    initials = [word[0] for word in bare_words(answer)]
    letters = all("a" <= initial <= "z" for initial in initials)
    return letters and len(initials) > 1 and all((ord(b) - ord(a)) % 26 == 1 for a, b in pairwise(initials))


@instruction("words:vowel")
def vowel(answer: str) -> bool:
    return "\n" not in answer and len(set("aeiou") & set(answer.lower())) <= 3


@instruction("words:consonants")
def consonants(answer: str) -> bool:
    return all(re.search("[b-df-hj-np-tv-z]{2}", word) for word in answer.lower().split())


@instruction("words:palindrome")
def palindromes(answer: str) -> bool:
    return sum(is_palindrome(word) and len(word) >= 5 for word in bare_words(answer)) >= 10


@instruction("words:prime_lengths")
def prime_lengths(answer: str) -> bool:
    lengths = {len(word) for word in bare_words(answer)}
    return bool(lengths) and all(n > 1 and all(n % d for d in range(2, int(n**0.5) + 1)) for n in lengths)


@instruction("words:repeats")
def repeats(answer: str, *, small_n: int) -> bool:
    return max(Counter(bare_words(answer)).values(), default=small_n + 1) <= small_n


@instruction("words:last_first")
def last_first(answer: str) -> bool:
    there = [words(sentence) for sentence in sentences(answer)]
    return len(there) > 1 and all(a and b and same_words(a[-1], b[0]) for a, b in pairwise(there))


@instruction("words:paragraph_last_first")
def paragraph_last_first(answer: str) -> bool:
    there = [paragraph for line in nonblank_lines(answer) if (paragraph := words(line.lower()))]
    return bool(there) and all(paragraph[0] == paragraph[-1] for paragraph in there)


@instruction("words:no_consecutive")
def no_consecutive(answer: str) -> bool:
    initials = [word[0] for word in bare_words(answer)]
    return len(initials) > 1 and all(a != b for a, b in pairwise(initials))


@instruction("words:words_position")
def words_position(answer: str, *, keyword: str) -> bool:
    there = words(answer)
    return len(there) > 2 and same_words(there[1], keyword) and same_words(there[-2], keyword)


@instruction("sentence:alliteration_increment")
def alliteration_increment(answer: str) -> bool:
    return rising([alliterative(bare_words(sentence)) for sentence in sentences(answer)])


def alliterative(there: list[str]) -> int:
    """The number of words that are in a run of two or more with the same initial."""
    alike = [a[0] == b[0] for a, b in pairwise(there)]
    return sum(before or after for before, after in zip([False, *alike], [*alike, False], strict=True))


@instruction("sentence:keyword")
def sentence_keyword(answer: str, *, word: str, N: int) -> bool:
    there = sentences(answer)
    return 1 <= N <= len(there) and occurrences(there[N - 1], word) > 0


@instruction("sentence:increment")
def sentence_increment(answer: str, *, small_n: int) -> bool:
    counts = lengths_in_words(answer)
    return len(counts) > 1 and all(after - before == small_n for before, after in pairwise(counts))


@instruction("format:parentheses")
def parentheses(answer: str) -> bool:
    stack: list[str] = []
    deepest = 0
    for character in answer:
        if character in BRACKETS.values():
            stack.append(character)
        elif character in BRACKETS:
            if not stack or stack.pop() != BRACKETS[character]:
                stack = []
                continue
            deepest = max(deepest, len(stack) + 1)
    return deepest >= 5


@instruction("format:quotes")
def quotes(answer: str) -> bool:
    stack: list[str] = []
    deepest = 0
    for mark in re.sub(r"(?<=\w)['\u2019](?=\w)", "", answer):  # an apostrophe is not a quote
        if mark not in "\"'":
            continue
        if stack and stack[-1] == mark:
            deepest = max(deepest, len(stack))
            stack.pop()
        else:
            stack.append(mark)
    return deepest >= 3


@instruction("format:options")
def one_of_options(answer: str, *, options: str) -> bool:
    separator = next((mark for mark in ("/", " or ", ",") if mark in options), ",")
    choices = [option.strip() for option in options.split(separator)]
    if re.match(r"\W*a\W*b\W*c\W*", options, re.IGNORECASE):  # letters must match exactly
        return answer in choices
    return bare_words(answer) in [bare_words(choice) for choice in choices]


@instruction("format:newline")
def newline(answer: str) -> bool:
    return all(len(bare_words(line)) <= 1 for line in answer.split("\n"))


@instruction("format:emoji")
def emoji(answer: str) -> bool:
    there = [sentence.rstrip(_TRAILING_MARKS) for sentence in sentences(answer)]
    followers = [*there[1:], ""]
    return bool(there) and all(
        _EMOJI_AT_END.search(this) or _EMOJI_AT_START.match(follower)
        for this, follower in zip(there, followers, strict=True)
    )


@instruction("format:line_indent")
def line_indent(answer: str) -> bool:
    return rising([len(line) - len(line.lstrip(" ")) for line in nonblank_lines(answer)])


@instruction("format:quote_unquote")
def quote_unquote(answer: str) -> bool:
    straight = re.sub("[\u201c\u201d]", '"', answer).replace("'\"'", "")
    between = straight.split('"')[2::2]  # what follows each closing mark
    closed = straight.count('"') % 2 == 0
    return closed and bool(between) and all(map(str.strip, between)) and bool(re.search(r"[^\W\d]", between[-1]))


@instruction("format:list")
def special_list(answer: str, *, sep: str) -> bool:
    return answer.count(sep) >= 2


@instruction("format:thesis")
def thesis(answer: str) -> bool:
    return any(_opens_with(tag, answer) for tag in ("i", "em"))


def _opens_with(tag: str, answer: str) -> bool:
    opened = re.search(rf"<{tag}>\s*+[^\s<]", answer)
    return opened is not None and bool(answer[opened.end() :].partition(f"</{tag}>")[2].strip())


@instruction("format:sub-bullets")
def sub_bullets(answer: str) -> bool:
    bullets = 0
    answered = True  # the bullet before has a sub-bullet
    for line in map(str.strip, answer.split("\n")):
        if re.match(r"\*(?!\*)", line):
            if not answered:
                return False
            bullets, answered, line = bullets + 1, False, line[1:].lstrip()
        answered |= line.startswith("-")
    return bullets > 0 and answered


@instruction("format:no_bullets_bullets")
def no_bullets_bullets(answer: str) -> bool:
    lines = [line.strip() for line in nonblank_lines(answer)]
    first = next((index for index, line in enumerate(lines) if line.startswith("*")), len(lines))
    before = [sentence for sentence in sentences(" ".join(lines[:first])) if stop_of(sentence) == "."]
    bullets = lines[first:]
    return len(before) >= 2 and len(bullets) >= 2 and all(line.startswith("*") for line in bullets)


@instruction("format:title_case")
def title_case(answer: str) -> bool:
    there = re.findall(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*", answer)
    return not answer.isupper() and bool(there) and all(word[0].isupper() for word in there)  # NATO is in title case


@instruction("format:output_template")
def output_template(answer: str) -> bool:
    return all(heading in answer for heading in ("My Answer:", "My Conclusion:", "Future Outlook:"))


@instruction("format:no_whitespace")
def no_whitespace(answer: str) -> bool:
    return not any(map(str.isspace, answer))


@instruction("custom:multiples")
def multiples(answer: str) -> bool:
    return re.findall(r"\d+", answer) == [str(number) for number in range(14, 51, 7)]


@instruction("custom:mcq_count_length")
def mcq_count_length(answer: str) -> bool:
    if not answer.startswith("Question"):
        return False
    questions = [part.strip() for part in re.split(r"Question \d+[.):;]?\s*", answer) if part.strip()]
    parts = [question.split("\n") for question in questions]
    marked = [[bool(re.match(r"\s*[A-Ea-e][.)]\s*\w", line)) for line in lines] for lines in parts]
    if [sum(marks) for marks in marked] != [5] * 4:
        return False
    return rising(
        [len(" ".join(lines[: marks.index(True)]).strip()) for lines, marks in zip(parts, marked, strict=True)]
    )


@instruction("custom:reverse_newline")
def reverse_newline(answer: str) -> bool:
    lines = [ascii_text(line).strip(string.punctuation + " ") for line in nonblank_lines(answer)]
    start = next((index for index, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    countries = lines[start:]
    return len(countries) >= AFRICAN_COUNTRIES and countries == sorted(set(countries), reverse=True)


@instruction("custom:word_reverse")
def word_reverse(answer: str) -> bool:
    return "bald eagle" in " ".join(reversed(bare_words(answer))) and len(sentences(answer)) == 1


@instruction("custom:character_reverse")
def character_reverse(answer: str) -> bool:
    return "elgae dlab" in answer.lower()


@instruction("custom:sentence_alphabet")
def sentence_alphabet(answer: str) -> bool:
    initials = [(words(sentence) or ["-"])[0][0].lower() for sentence in sentences(answer)]
    return "".join(initials) == "abcdefghijklmnopqrstuvwxyz"


@instruction("custom:european_capitals_sort")
def european_capitals_sort(answer: str) -> bool:
    return [name.strip() for name in ascii_text(answer).split(",") if name.strip()] == CAPITALS


def table(answer: str, header: str, rows: int, delimiter: str = ",") -> list[list[str]] | None:
    """The data rows of a CSV answer; None unless it has that header and `rows` data rows."""
    try:
        read = list(csv.reader(io.StringIO(answer), delimiter=delimiter, skipinitialspace=True, strict=True))
    except csv.Error:
        return None
    names = header.split()
    square = len(read) == rows + 1 and all(len(row) == len(names) for row in read)
    return read[1:] if square and [name.strip() for name in read[0]] == names else None


@instruction("custom:csv_city")
def csv_city(answer: str) -> bool:
    return table(answer, "ID Country City Year Count", 7) is not None


@instruction("custom:csv_special_character")
def csv_special_character(answer: str) -> bool:
    quoted = re.findall(r'(?:^|,)[ \t]*+"([^"\n]*+)"', answer, re.MULTILINE)
    special = any(re.search(r"[^\w\s]", field) for field in quoted)
    return special and table(answer, "ProductID Category Brand Price Stock", 14) is not None


@instruction("custom:csv_quotes")
def csv_quotes(answer: str) -> bool:
    bare = [field.strip() for line in answer.split("\n") for field in line.split("\t")]
    quoted = all(len(field) > 1 and field[0] == field[-1] == '"' for field in bare)
    return quoted and table(answer, "StudentID Subject Grade Semester Score", 3, "\t") is not None


@instruction("custom:date_format_list")
def date_format_list(answer: str) -> bool:
    return all(is_date_of_napoleon(text.strip()) for text in answer.split(","))


def is_date_of_napoleon(text: str) -> bool:
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text, re.ASCII):
        return False
    try:
        return 1769 <= datetime.date.fromisoformat(text).year <= 1821
    except ValueError:  # the parser is the check: the 30th of February is not a date
        return False


@instruction("repeat:repeat_change")
def repeat_change(answer: str, *, prompt_to_repeat: str) -> bool:
    given, asked = answer.split(), prompt_to_repeat.split()
    return given[1:] == asked[1:] and given[:1] != asked[:1]


@instruction("repeat:repeat_simple")
def repeat_simple(answer: str) -> bool:
    return same_words(answer, REPEATED_SENTENCE)


@instruction("repeat:repeat_span")
def repeat_span(answer: str, *, n_start: int, n_end: int, prompt_to_repeat: str) -> bool:
    return answer.lower().split() == prompt_to_repeat.lower().split()[n_start : n_end + 1]
