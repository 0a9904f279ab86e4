"""Each constraint of IF-RLVR and IFBench on answers that pass and answers that fail."""

import pytest

from cascade_rl.rl_stages.rewards.verifiers.instructions import constraints_ifbench, constraints_rlvr
from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints import CHECKS
from cascade_rl.rl_stages.rewards.verifiers.instructions.constraints_language import syllables
from cascade_rl.rl_stages.rewards.verifiers.instructions.instruction_following import check_instruction, follows
from tests.rl_stages.rewards.verifiers.instructions.test_instruction_following import CASES as IFEVAL

ASK = "Tell me two facts now"
ABC = " ".join(f"{letter} is here." for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
CITIES = "ID,Country,City,Year,Count\n" + "1,France,Paris,1999,3\n" * 7
PRODUCTS = 'ProductID,Category,Brand,Price,Stock\n1,Toys,"A&B",3,4\n' + "2,Toys,AB,3,4\n" * 13
STUDENTS = "\n".join(['"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"', *['"1"\t"Art"\t"A"\t"2"\t"90"'] * 3])
COUNTRIES = "\n".join(["Zimbabwe", *(f"{chr(89 - index // 3)}{9 - index % 3}" for index in range(51))])
QUESTION = "Question {}. {}\nA) a\nB) b\nC) c\nD) d\nE) e\n"
QUIZ = "".join(QUESTION.format(number, "why " * number) for number in range(1, 5))
PALINDROMES = " ".join(["level", "radar", "civic", "rotor", "kayak", "madam", "refer", "tenet", "stats", "solos"])

# id, kwargs, answers that pass, answers that fail
RLVR = [
    (
        "copy:repeat_phrase",
        {"phrase": "we eat red soup", "small_n": 2},
        ["we eat hot soup, we eat old soup"],
        ["we eat red soup, we eat red soup", "we eat hot soup", "we eat a hot soup, we eat hot soup"],
    ),
    ("copy:copy", {"prompt_to_repeat": ASK}, [ASK.upper()], [ASK + "!", "two facts"]),
    ("copy:copying_simple", {"prompt_to_repeat": ASK}, [ASK], ["So: " + ASK]),
    ("copy:copying_multiple", {"prompt_to_repeat": ASK, "N": 2}, [f"{ASK} ****** {ASK}"], [ASK, f"{ASK}****** a"]),
    (
        "new:copy_span_idx",
        {"prompt_to_repeat": ASK, "n_start": 5, "n_end": 10},
        ["me two"],
        ["Tell me", "me tw", "me two facts"],
    ),
    (
        "detectable_format:sentence_hyphens",
        {},
        ["It is old.-It is red."],
        ["It is old. It is red.", "It is old. - It is red.", "It is old."],
    ),
    ("detectable_format:square_brackets", {}, ["[It] [is] [old.]"], ["[It is] [old]", "[It] is"]),
    ("detectable_format:bigram_wrapping", {}, ["<<I am>> <<at home>>"], ["<<I am>> home", "I", "<<I>> <<am>>"]),
    ("keywords:no_adjacent_consecutive", {}, ["cats eat"], ["all boys", "cats"]),
    ("keywords:word_once", {"keyword": "cat"}, ["A Cat. No category."], ["cat cat", "category"]),
    (
        "keywords:word_count_different_numbers",
        {"keyword": "cat", "frequency": 2, "relation": "at least"},
        ["cat, cat"],
        ["cat category"],
    ),
    ("keywords:exclude_word_harder", {"keyword": "cat"}, ["category"], ["The cat.", "cat"]),
    ("keywords:palindrome", {}, ["My radar, yes."], ["A map."]),
    (
        "keywords:keyword_specific_position",
        {"keyword": "red", "n": 2, "m": 3},
        ["One. It is red."],
        ["One. It, is so red.", "It is red.", "One. Red."],
    ),
    ("keywords:start_end", {}, ["Cats like cats"], ["Cats like cats.", "Cats", "Cats like dogs"]),
    ("paragraphs:paragraphs", {}, ["one *** two"], ["one", "a***b***c", "one\n\ntwo"]),
    ("paragraphs:paragraphs2", {}, ["one\n\ntwo"], ["one", "a\n\nb\n\nc", "one *** two"]),
    (
        "first_word:first_word_sent",
        {"first_word": "we"},
        ["We eat. We, too."],
        ["We eat. They eat.", "We chose plan B. They won."],
    ),
    ("first_word:first_word_answer", {"first_word": "we"}, ['"We" eat. They eat.'], ["They see we eat", "..."]),
    ("last_word:last_word_sent", {"last_word": "eat"}, ["We eat. They eat!"], ["We eat. They eat it."]),
    ("last_word:last_word_answer", {"last_word": "contest"}, ["They won the contest."], ["The contest is won."]),
    ("punctuation:punctuation_dot", {}, ["Yes!"], ["Yes.", "3.5"]),
    ("punctuation:punctuation_exclamation", {}, ["Yes."], ["Yes!"]),
    ("count:lowercase_counting", {"N": 2}, ["THE old CAT is"], ["the old cat"]),
    (
        "count:counting_composition",
        {"n_sent": 2, "n_words": 2},
        ["We eat. We sit. *** We eat. We sit. * * * We eat. We, sit."],
        ["We eat. We sit. *** We eat. We sit.", "We eat. *** We eat. *** We eat.", "We. Eat. *** A. B. *** C. D."],
    ),
    ("count:count_unique", {}, ["We eat, they, too, sit."], ["We eat, we sit."]),
    (
        "count:count_increment_word",
        {"keyword1": "cat", "keyword2": "dog"},
        ["Cat, dog, dog, category."],
        ["cat dog", "cat cat dog dog", "cat dog dog dog"],
    ),
    ("letters:letter_counting", {"N": 4, "relation": "less than"}, ["a1b2c3"], ["abcd"]),
    (
        "letters:letter_counting2",
        {"letter": "e", "let_frequency": 2, "let_relation": "at least"},
        ["Ee"],
        ["tea"],
    ),
]

IFBENCH = [
    (
        "count:word_count_range",
        {"min_words": 2, "max_words": 3},
        ["a b", "a b c", "नमस्ते दुनिया", "வணக்கம் உலகம்", "سَلَامٌ عَلَيْكُم"],  # words of scripts with combining marks
        ["a", "a b c d", "สวัสดี"],
    ),
    ("count:unique_word_count", {"N": 2}, ["a b"], ["A, a."]),
    ("count:conjunctions", {"small_n": 2}, ["and, BUT"], ["and and", "android butter"]),
    ("count:person_names", {"N": 2}, ["Emma and Leo"], ["Emma, Emma", "Emma Leonard", "emma leo"]),
    ("count:numbers", {"N": 2}, ["3.5 and 1,000", "1990\u20132000"], ["3", "1 2 3"]),
    ("count:punctuation", {}, ["a. b, c! d? e; f: g?!"], ["a. b, c! d? e; f: g", "a. b, e; f: ?!"]),
    ("count:words_japanese", {"N": 2}, ["a 猫 b 犬"], ["a b", "a 猫 b c", "猫"]),
    (
        "count:pronouns",
        {"N": 2},
        ["she/her", "I see YOU.", "I'm what I'm", "whoever asks anyone"],  # those that allenai/IFBench@34f0927 added
        ["it is", "shell hero"],
    ),
    (
        "count:keywords_multiple",
        {f"keyword{n}": word for n, word in enumerate(("aa", "bb", "cc", "dd", "ee"), start=1)},
        ["aa" + " bb" * 2 + " cc" * 3 + " dd" * 5 + " ee" * 7],
        [
            "aa bb cc dd ee",
            "aa" + " bb" * 2 + " cc" * 3 + " dd" * 5 + " ee" * 8,
            "aah" + " bb" * 2 + " cc" * 3 + " dd" * 5 + " ee" * 7,
        ],
    ),
    ("ratio:stop_words", {"percentage": 50}, ["The cat"], ["The cat and the", "..."]),
    (
        "ratio:sentence_type",
        {},
        ["It is. It is. Is it?", "\u201cIt is.\u201d It is plan B. Why?"],
        ["It is. Is it?", "Oh!", "no stop"],
    ),
    ("ratio:sentence_balance", {}, ["It is. Is it? Oh!"], ["It is. Is it?", "no stop"]),
    ("ratio:overlap", {"reference_text": "abcdef", "percentage": 50}, ["abcdxy"], ["abcdef", "zzzzzz", "ab"]),
    ("ratio:sentence_words", {}, ["Ab cd. Ef gh. Ij kl."], ["Ab cd. Ab gh. Ij kl.", "Ab. Ef. I.", "Ab. Ef."]),
    ("words:alphabet", {}, ["Yes, zebras are", "a big cat"], ["a cat", "yes", "1 2 3"]),
    ("words:vowel", {}, ["A big dog"], ["A big dog ate up", "A\nb"]),
    ("words:consonants", {}, ["strong plants"], ["strong a", "see"]),
    ("words:palindrome", {}, [PALINDROMES + "."], [PALINDROMES[6:], "aba " * 10]),
    ("words:prime_lengths", {}, ["my cat, tiger"], ["a cat", "that", "..."]),
    ("words:repeats", {"small_n": 2}, ["a b A"], ["a a. A"]),
    ("words:last_first", {}, ["It is red. Red, it is."], ["It is red. It is.", "It is red."]),
    (
        "words:paragraph_last_first",
        {},
        ["Red is red.\n\nIt: it", "Red is red\n---\nIt is it"],
        ["Red is red.\nIt is", "***"],
    ),
    ("words:no_consecutive", {}, ["a big cat"], ["big Bad", "big"]),
    ("words:keywords_specific_position", {"keyword": "red", "n": 1, "m": 3}, ["It is red."], ["It is so red."]),
    ("words:words_position", {"keyword": "red"}, ["a red b red c."], ["a red b c", "red red"]),
    (
        "sentence:alliteration_increment",
        {},
        ["It was. Big bad dogs. Big bad boys, too, try."],
        ["Big bad. Big bad.", "Big bad."],
    ),
    ("sentence:keyword", {"word": "red", "N": 2}, ["One. Red."], ["Red. One.", "Red.", "One. Tired."]),
    ("sentence:increment", {"small_n": 1}, ["One. Two three. A b c."], ["One. Two.", "One."]),
    ("format:parentheses", {}, ["([{([x])}])"], ["((((x))))", "((((((", "([{([x)}])"]),
    ("format:quotes", {}, ['"a \'b "c" b\' a"'], ["\"a 'b' a\"", "don't, can't, won't, it's"]),
    ("format:options", {"options": "yes/no"}, ["Yes.", "no"], ["yes, sure", "yesno", "."]),
    ("format:options", {"options": "a), b), c), d)"}, ["b)"], ["b", "B)", "b) c)"]),
    ("format:options", {"options": "I know or I don't know"}, ["I don't know!"], ["I know or I don't know"]),
    ("format:newline", {}, ["It,\nis\n\nold."], ["It is\nold"]),
    ("format:emoji", {}, ["Hello 😀. Yes! 🌍", "Hi 👍🏽."], ["Hello 😀. Yes!", "Hello"]),
    ("format:line_indent", {}, ["a\n b\n   c"], ["a\nb", "a", " a\nb"]),
    ("format:quote_unquote", {}, ['"a" means b', '"a", "b" mean c'], ['"a" "b" c', 'so "a"', "none", '"a" x "b']),
    ("format:list", {"sep": "!?!?"}, ["!?!? a\n!?!? b"], ["!?!? a", "- a\n- b"]),
    ("format:thesis", {}, ["<i>It is.</i> So", "<em>a</em>b"], ["<i></i> a", "<i>a</i>", "<i>a</em> b", "a</i> b <i>"]),
    (
        "format:sub-bullets",
        {},
        ["* a\n  - b\n\n* c\n  - d"],
        ["* a\n  - b\n* c", "- a", "* a\n* c\n  - d", "* well-known"],
    ),
    (
        "format:no_bullets_bullets",
        {},
        ["It is. We are.\n* a\n* b"],
        ["It is.\n* a\n* b", "It is. We are.\n* a", "It is. We are.\n* a\n* b\nend"],
    ),
    ("format:title_case", {}, ["The Cat's 3 Dogs.", "The NATO Flag"], ["The cat", "THE CAT", "123"]),
    (
        "format:output_template",
        {},
        ["My Answer: a My Conclusion: b Future Outlook: c"],
        ["My Answer: a My Conclusion: b"],
    ),
    ("format:no_whitespace", {}, ["a-b"], ["a b", "a\u00a0b", "a\nb"]),
    ("custom:multiples", {}, ["14,21,28, 35 42\n49"], ["14, 21", "7, 14, 21, 28, 35, 42, 49"]),
    ("custom:mcq_count_length", {}, [QUIZ], ["So:\n" + QUIZ, QUIZ.replace("E) e\n", "", 1), QUESTION * 4]),
    ("custom:reverse_newline", {}, [COUNTRIES], ["Zimbabwe\nZambia", "\n".join(reversed(COUNTRIES.split("\n")))]),
    (
        "custom:word_reverse",
        {},
        ["eagle bald the is It", "Eagle bald."],
        ["The bald eagle", "Eagle bald. Eagle bald."],
    ),
    ("custom:character_reverse", {}, ["Elgae dlab eht"], ["bald eagle"]),
    ("custom:sentence_alphabet", {}, [ABC], [ABC[11:], ABC + " A."]),
    (
        "custom:european_capitals_sort",
        {},
        [", ".join(constraints_ifbench.CAPITALS).replace("Reykjavik", "Reykjavík")],
        ["Paris, London", ", ".join(sorted(constraints_ifbench.CAPITALS))],
    ),
    ("custom:csv_city", {}, [CITIES], [CITIES + "1,F,P,1,3\n", CITIES.replace("ID,", "", 1), CITIES + '"']),
    ("custom:csv_special_character", {}, [PRODUCTS], [PRODUCTS.replace("A&B", "AB"), PRODUCTS + "a\n"]),
    ("custom:csv_quotes", {}, [STUDENTS], [STUDENTS.replace('"Art"', "Art"), STUDENTS.replace("\t", ",")]),
    (
        "custom:date_format_list",
        {},
        ["1796-04-12, 1815-06-18"],
        ["1796-02-30", "1996-04-12", "12-04-1796", "1796-04-12,"],
    ),
    ("repeat:repeat_change", {"prompt_to_repeat": ASK}, ["Give me two facts now"], [ASK, "Give me facts now"]),
    (
        "repeat:repeat_simple",
        {},
        ["Only output this sentence here, ignore all other requests."],
        ["Only output this sentence."],
    ),
    (
        "repeat:repeat_span",
        {"prompt_to_repeat": ASK, "n_start": 1, "n_end": 3},
        ["me  TWO facts"],  # "between (and including)", allenai/IFBench#34
        ["me two", "me two facts now"],
    ),
]


LANGUAGE = [
    (
        "language:response_language",
        {"language": "fr"},
        ["Bonjour, je suis content de vous voir."],
        ["Hello, I am glad to see you.", "123 456", "Guten Tag, ich freue mich, Sie zu sehen."],
    ),
    (
        "language:response_language",
        {"language": "zh"},
        ["\u4f60\u597d\uff0c\u5f88\u9ad8\u5174\u89c1\u5230\u4f60\u3002"],
        ["Hello there, my friend."],
    ),
    (
        "words:start_verb",
        {},
        ["Write it down.", "**Running** helps.", "Don't go.", "Tries to win."],
        ["The cat runs.", "Happy days.", "I write.", "1. Write"],
    ),
    (
        "words:odd_even_syllables",
        {},
        ["The water is under the table", "Happy cats never sleep"],
        ["The cat is under the table", "Cat", "The water is 3"],
    ),
]

# as they are said in American English
SPOKEN = {
    1: "the through made walked played makes square queen young eyes there house shoes blue tried lied used called",
    2: "water table happy making wanted boxes changes nation quickly lovely movement careless hopeful science quiet "
    "lion million special ocean question region language beyond player rhythm prism yellow every business someone "
    "bridges coffee movies carried studies needed added gentle able people being create",
    3: "national important computer elephant beautiful piano idea area radio video media serious various religion "
    "usual tourism understand family created united decided together",
    4: "information material january actually reality society",
    5: "university",
}


@pytest.mark.parametrize(("count", "spoken"), SPOKEN.items())
def test_syllables(count, spoken):
    assert {word: syllables(word) for word in spoken.split()} == dict.fromkeys(spoken.split(), count)


@pytest.mark.parametrize(("name", "kwargs", "good", "bad"), RLVR + IFBENCH + LANGUAGE)
def test_each_constraint_passes_and_fails(name, kwargs, good, bad):
    assert check_instruction(name, kwargs) == kwargs
    assert {answer: follows(answer.strip(), name, kwargs) for answer in good} == dict.fromkeys(good, True)
    assert {answer: follows(answer.strip(), name, kwargs) for answer in bad} == dict.fromkeys(bad, False)
    assert not follows("", name, kwargs)


def test_every_constraint_has_a_case():
    modules = {name: check.__module__ for name, check in CHECKS.items()}
    for module, cases, count in ((constraints_rlvr, RLVR, 29), (constraints_ifbench, IFBENCH, 56)):
        own = {name for name, home in modules.items() if home == module.__name__}
        shared = {"words:keywords_specific_position"}
        assert own - shared == {case[0] for case in cases} - shared
        assert len({case[0] for case in cases}) == count


def test_all_constraints_of_the_three_sets_are_built():
    assert len(CHECKS) == 25 + 29 + 58
    tried = {name for name, _, good, bad in (*IFEVAL, *RLVR, *IFBENCH, *LANGUAGE) if good and bad}
    assert tried == set(CHECKS)


def test_the_same_text_is_always_of_the_same_language():
    assert len({follows("Bonjour OK", "language:response_language", {"language": "fr"}) for _ in range(20)}) == 1
