import time

import pytest

from cascade_rl.rl_stages.rewards.verifiers.structured.formats import FORMATS


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("date", "2024-02-29", "2023-02-29"),
        ("date", "1847-08-21", "21.08.1847"),
        ("date", "2024-01-01", "2024-W01-1"),
        ("time", "23:59:60Z", "12:59:60Z"),
        ("time", "00:59:60+01:00", "24:00:00Z"),
        ("time", "10:00:00.5-08:00", "10:00:00"),
        ("date-time", "2024-02-29T10:00:00Z", "2023-02-29T10:00:00Z"),
        ("date-time", "1985-04-12t23:20:50.52z", "2024-02-29 10:00:00Z"),
        ("date-time", "1996-12-19T16:39:57-08:00", "2024-02-29T10:00:00"),
        ("email", "joe.bloggs+x@example.com", "nope"),
        ("email", '"joe bloggs"@example.com', ".joe@example.com"),
        ("email", "joe@[127.0.0.1]", "joe@[127.0.0.300]"),
        ("email", "joe@[IPv6:::1]", "joe@in valid.com"),
        ("email", "a@b.co", "a@b@c.co"),
        ("idn-email", "\uc2e4\ub840@example.com", "nope"),
        ("ipv4", "192.168.0.1", "999.1.1.1"),
        ("ipv4", "1.2.3.4", "1.2.3.04"),
        ("ipv6", "::1", "12345::"),
        ("uuid", "2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08aa9811eab4aa73b441d16380"),
        ("hostname", "www.example.com", "-a.com"),
        ("hostname", "a" * 63 + ".com", "a" * 64 + ".com"),
        ("uri", "http://user@example.com:80/a?b=c#d", "example.com/a"),
        ("uri", "mailto:joe@example.com", "http://a b"),
        ("uri", "http://[::1]/", "http://x/%zz"),
        ("uri-reference", "/a/b?c", "\\\\server\\share"),
        ("iri", "http://\u00f6.example/\u00e9", "\u00e9"),
        ("json-pointer", "/a/~0~1", "a"),
        ("relative-json-pointer", "1/a", "/a"),
        ("uri-template", "http://x/{a,b}{?c*}", "http://x/{a"),
        ("duration", "P1Y2M3DT4H5M6S", "P"),
        ("duration", "P4W", "PT"),
        ("regex", "^a+$", "^(a"),
    ],
)
def test_each_format(name, right, wrong):
    assert FORMATS.conforms(right, name)
    assert not FORMATS.conforms(wrong, name)
    assert not FORMATS.conforms("", name) or name in ("regex", "json-pointer", "uri-reference", "uri-template")
    assert FORMATS.conforms(3, name)


@pytest.mark.parametrize("name", ["int32", "float", "password", "idn-hostname", "phone"])
def test_another_format_is_an_annotation(name):
    assert FORMATS.conforms("anything", name)


@pytest.mark.parametrize("piece", ["a", "a.", "%41", "/", "{a}", "1", "a@", ":", "[", '"', "\\a", "P1", "-"])
def test_repeated_pieces_take_linear_time(piece):
    started = time.process_time()
    for name in FORMATS.checkers:
        FORMATS.conforms(piece * (100_000 // len(piece)), name)
        FORMATS.conforms("http://" + piece * (100_000 // len(piece)) + "\u2603", name)
    assert time.process_time() - started < 5.0
