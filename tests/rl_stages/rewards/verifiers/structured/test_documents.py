import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_rl.rl_stages.rewards.verifiers.structured.documents import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    Malformed,
    parse_document,
)

BILLION_LAUGHS = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><x>&b;</x>'
ALIAS_BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)

LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    LEAVES | st.text(st.characters(codec="ascii", categories=["L", "N"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=4),
    max_leaves=20,
)

# What YAML 1.1 reads as numbers and YAML 1.2 as text.
LEFT = {"u": "1_000", "b": "0b11"}


@given(VALUES)
@settings(max_examples=40, deadline=None)
def test_json_and_yaml_come_back_as_they_were(value):
    assert parse_document("json", json.dumps(value)) == value
    assert parse_document("yaml", yaml.safe_dump(value)) == value


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("yaml", "born: 1847-08-21", {"born": "1847-08-21"}),
        ("yaml", "t: 12:30\nd: 1:30:00\nz: 1e3\nu: 1_000\nb: 0b11", {"t": "12:30", "d": "1:30:00", "z": 1e3} | LEFT),
        (
            "yaml",
            "on: push\nyes: no\n404: off\n~: y\n'a b': N",
            {"on": "push", "yes": "no", "404": "off", "~": "y", "a b": "N"},
        ),
        ("yaml", "[017, 0o17, 0x1F, +1, -0, 08, 0o8]", [17, 15, 31, 1, 0, 8, "0o8"]),
        ("yaml", "[1., .5, -1.5E-3, 1e, .e1, 1.2.3]", [1.0, 0.5, -1.5e-3, "1e", ".e1", "1.2.3"]),
        ("yaml", "[~, Null, '', true, FALSE, tRUE, nULL]", [None, None, "", True, False, "tRUE", "nULL"]),
        ("yaml", "<<: {a: 1}\nop: =", {"<<": {"a": 1}, "op": "="}),
        ("yaml", "a: !!str 5\nb: !!float 1", {"a": "5", "b": 1.0}),
        ("toml", "born = 1847-08-21\n[a]\nb = [1]", {"born": "1847-08-21", "a": {"b": [1]}}),
        ("csv", 'a,b\n1,"x, y"\n\n2,\n', [{"a": "1", "b": "x, y"}, {"a": "2", "b": ""}]),
        ("csv", "a,b", []),
        ("xml", "<r><a>1</a><a>2</a><b/></r>", {"r": {"a": ["1", "2"], "b": None}}),
        ("xml", '<?xml version="1.0"?>\n<r k="v">t<a>1</a>u</r>', {"r": {"@k": "v", "a": "1", "#text": "tu"}}),
    ],
)
def test_each_format_as_json_values(kind, text, value):
    assert parse_document(kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("json", "[" * 100_000, "RecursionError"),
        ("json", "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), "deeper than"),
        ("json", "[" + "1," * 50_000 + "1]", "more than 50000 values"),
        ("json", " " * (MAX_CHARACTERS + 1), "characters"),
        ("json", '{"a": 1, "a": 2}', "a key twice"),
        ("json", '{"a": NaN}', "NaN is no JSON number"),
        ("json", "[-Infinity]", "-Infinity is no JSON number"),
        ("json", "[1e999]", "not finite"),
        ("json", "1" * 5000, "ValueError"),
        ("json", "1" * 400, "more than 1024 bits"),
        ("json", '```json\n{"a": 1}\n```', "JSONDecodeError"),
        ("json", '{"a": 1} done', "Extra data"),
        ("yaml", ALIAS_BOMB, "a YAML alias"),
        ("yaml", "a: 1\na: 2", "a key twice"),
        ("yaml", "[1]: a", "a key that is not text"),
        ("yaml", "1: a\n'1': b", "a key twice"),
        ("yaml", "a: -.Inf", "not finite"),
        ("yaml", "a: !!bool yes", "no bool"),
        ("yaml", "a: !!int ''", "no int"),
        ("yaml", "a: !!int {b: 1}", "ConstructorError"),
        ("yaml", "a: !!timestamp x", "ConstructorError"),
        ("yaml", "a: .nan", "not finite"),
        ("yaml", "a: 1\n---\nb: 2", "ComposerError"),
        ("yaml", "a: !!python/object/apply:os.system [ls]", "ConstructorError"),
        ("yaml", "a: !!set {b}", "ConstructorError"),
        ("yaml", "[" * 5000, "RecursionError"),
        ("yaml", "```yaml\na: 1\n```", "ScannerError"),
        ("xml", BILLION_LAUGHS, "a document type"),
        ("xml", '<!DOCTYPE x SYSTEM "file:///etc/passwd"><x/>', "a document type"),
        ("xml", "<a>" * 1000 + "</a>" * 1000, "deeper than"),
        ("xml", "<a><b></a>", "ParseError"),
        ("xml", "<a/><b/>", "ParseError"),
        ("toml", "a = 1\na = 2", "TOMLDecodeError"),
        ("toml", "a = nan", "not finite"),
        ("toml", "a = " + "[" * 5000, "RecursionError"),
        ("csv", "a,a\n1,2", "a column twice"),
        ("csv", "a,b\n1", "another length"),
        ("csv", "a,b\n1,2,3", "another length"),
        ("csv", 'a\n"' + "x" * 140_000 + '"', "field larger than"),
        ("csv", 'a\n"x"y', "expected after"),
    ],
)
def test_bombs_and_loose_readings_are_refused(kind, text, why):
    with pytest.raises(Malformed, match=why):
        parse_document(kind, text)
