import pytest

from cascade_rl.rl_stages.rewards.swe.patch import Edit, PatchError, apply_edits, edit_text, parse_edits
from tests.rl_stages.rewards.verifiers.growth import superlinear

FILES = {"a.py": "one\n  two\none\nthree\n", "b/c.py": "x = 1\n"}
EDIT = Edit("a.py", "  two\none", "  2")


@pytest.mark.parametrize("form", ["{}", "<solution>\n```python\n{}\n```\n</solution>", "words <solution>{}</solution>"])
def test_blocks_are_read_with_and_without_their_wrapping(form):
    text = form.format("\n" + edit_text(EDIT) + "\n" + edit_text(Edit("b/c.py", "x = 1", "")) + "\n")
    edits = parse_edits(text)
    assert edits == [EDIT, Edit("b/c.py", "x = 1", "")]
    assert apply_edits(FILES, edits) == {"a.py": "one\n  2\nthree\n", "b/c.py": "\n"}


def test_every_occurrence_at_the_start_of_a_line_is_replaced():
    assert apply_edits(FILES, [Edit("a.py", "one", "1")])["a.py"] == "1\n  two\n1\nthree\n"


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("odd", ["\f", "\v", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r", "a\rb"])
def test_lines_end_at_line_feeds_alone(odd, ends):
    """In either part of a block, whose own line ends may be those of Windows."""
    before = f"def f():\n    return 1\n\n{odd}\ndef g():\n    return 2\n"
    search = f"    return 1\n\n{odd}\ndef g():"
    for replace in (search.replace("1", "3"), f"    return 'q{odd}r'\ndef g():"):
        text = edit_text(Edit("a.py", search, replace)).replace("\n", ends)
        if odd == "\r" and ends == "\n":
            continue  # a line that ends with \r is one of Windows
        right = before.replace(search, replace)
        assert apply_edits({"a.py": before}, parse_edits(text)) == {"a.py": right}


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_new_lines_end_as_those_of_the_file(ends):
    file = "one\r\ntwo\r\nthree\r\n"
    for search, replace in (("one\ntwo", "1\n2\n2"), ("two", "2\n2")):
        edits = parse_edits(edit_text(Edit("a.py", search, replace)).replace("\n", ends))
        right = file.replace(search.replace("\n", "\r\n"), replace.replace("\n", "\r\n"))
        assert apply_edits({"a.py": file}, edits) == {"a.py": right}
    mixed = apply_edits({"a.py": "one\ntwo\r\n"}, parse_edits(edit_text(Edit("a.py", "one\ntwo", "1"))))
    assert mixed == {"a.py": "1\r\n"}


def test_white_space_after_a_marker_or_a_fence_says_nothing():
    block = edit_text(Edit("a.py", "one  ", " 1 ")).replace("SEARCH\n", "SEARCH \n").replace("REPLACE", "REPLACE\t")
    assert parse_edits(f"```python \n{block}\n``` ") == [Edit("a.py", "one  ", " 1 ")]


def test_edits_of_one_file_build_on_each_other():
    edits = [Edit("a.py", "three", "four"), Edit("a.py", "four", "five")]
    assert apply_edits(FILES, edits)["a.py"].endswith("five\n")


MALFORMED = (
    "",
    "no block at all",
    "<<<<<<< SEARCH\none\n=======\n1\n>>>>>>> REPLACE",
    "### a.py\n<<<<<<< SEARCH\none\n1\n>>>>>>> REPLACE",
    "### a.py\n<<<<<<< SEARCH\none\n=======\n1",
    "### a.py\n<<<<<<< SEARCH\none\n=======\n1\n=======\n2\n>>>>>>> REPLACE",
    "### a.py\none\n=======\n1\n>>>>>>> REPLACE",
    f"<solution>{edit_text(EDIT)}",
    f"<solution>\n{edit_text(EDIT)}\n</solution><solution></solution>",
    edit_text(EDIT) + "\nand more",
)


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_blocks(text):
    with pytest.raises(PatchError, match="expected"):
        parse_edits(text)


@pytest.mark.parametrize(
    "edit", [Edit("z.py", "one", "1"), Edit("a.py", "four", "1"), Edit("a.py", "two", "2"), Edit("a.py", "", "2")]
)
def test_lines_that_are_not_there(edit):
    with pytest.raises(PatchError, match="expected"):
        apply_edits(FILES, [edit])


def test_a_long_malformed_answer_is_read_in_one_pass():
    def refused(text):
        with pytest.raises(PatchError):
            parse_edits(text)

    assert not superlinear(refused, "### a.py\n<<<<<<< SEARCH\n", short_length=10_000)


def test_edits_that_double_a_line_do_not_fill_the_memory():
    doubled = [Edit("a.py", "x", "x\nx")] * 60
    with pytest.raises(PatchError, match="to grow by at most 100000 characters"):
        apply_edits({"a.py": "x\n"}, doubled)
    assert apply_edits({"a.py": "x\n"}, doubled[:10]) == {"a.py": "x\n" * 1024}


def test_solutions_that_only_open_are_counted_at_once():
    def refuse(text: str) -> None:
        with pytest.raises(PatchError):
            parse_edits(text)

    assert not superlinear(refuse, "<solution>", short_length=10_000)
