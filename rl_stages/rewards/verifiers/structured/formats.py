"""The formats of JSON schema that are checked; any other is an annotation, as the standard has it.

jsonschema itself checks date, ipv4, ipv6, regex and idn-email. For those below it needs a package each, or is lax:
RFC 3339 (date-time, time), RFC 5321 (email), RFC 1123 (hostname; a Punycode label is not decoded), RFC 3986 and 3987
(uri, iri and their references), RFC 6901 (json-pointer), RFC 6570 (uri-template), ISO 8601 (duration), RFC 4122 (uuid).
Every pattern is linear in the text.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Callable

from jsonschema import FormatChecker

LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOST = rf"(?=.{{1,253}}$){LABEL}(?:\.{LABEL})*"
ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
LOCAL = rf'(?:{ATOM}(?:\.{ATOM})*|"(?:[ !#-\[\]-~]|\\[ -~])*")'
CLOCK = r"(?P<hour>[01][0-9]|2[0-3]):(?P<minute>[0-5][0-9]):(?P<second>[0-5][0-9]|60)(?:\.[0-9]+)?"
ZONE = r"(?:[Zz]|(?P<zone>[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]))"
DAYS = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
HOURS = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
POINTER = r"(?:/(?:[^~/]|~[01])*)*"
VARIABLE = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})+(?:\.(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})+)*(?::[1-9][0-9]{0,3}|\*)?"
EXPRESSION = rf"\{{[+#./;?&]?{VARIABLE}(?:,{VARIABLE})*\}}"


def _reference(scheme: str, more: str = "") -> str:
    """A URI reference (RFC 3986, appendix B) with `scheme`. `more` are further characters, of an IRI."""

    def text(characters: str) -> str:
        return rf"(?:[A-Za-z0-9._~!$&'()*+,;={characters}{more}-]|%[0-9A-Fa-f]{{2}})*"

    host = rf"(?:\[[0-9A-Fa-f:.]+\]|\[[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~:-]+\]|{text('')})"
    authority = rf"//(?:{text(':')}@)?{host}(?::[0-9]*)?(?:/{text(':@/')})?"
    path = rf"(?!//){text(':@/')}"
    return rf"{scheme}(?:{authority}|{path})(?:\?{text(':@/?')})?(?:#{text(':@/?')})?"


SCHEME, NO_SCHEME, BEYOND_ASCII = r"[A-Za-z][A-Za-z0-9+.-]*:", r"(?![^/?#]*:)", "\u00a0-\ud7ff\uf900-\U000efffd"
PATTERNS = {
    "duration": rf"P(?:{DAYS}(?:{HOURS})?|{HOURS}|[0-9]+W)",
    "hostname": HOST,
    "iri": _reference(SCHEME, BEYOND_ASCII),
    "iri-reference": _reference(rf"(?:{SCHEME}|{NO_SCHEME})", BEYOND_ASCII),
    "json-pointer": POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{POINTER})",
    "uuid": r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": _reference(SCHEME),
    "uri-reference": _reference(rf"(?:{SCHEME}|{NO_SCHEME})"),
    "uri-template": rf"(?:[^\x00-\x20\x7f\"%<>\\^`{{|}}]|%[0-9A-Fa-f]{{2}}|{EXPRESSION})*",
}


def _time(text: str) -> bool:
    """A full-time of RFC 3339. A 60th second is one before midnight in UTC."""
    found = re.fullmatch(CLOCK + ZONE, text, re.ASCII)
    if found is None or found["second"] != "60":
        return found is not None
    zone = found["zone"] or "+00:00"
    offset = (1 if zone[0] == "+" else -1) * (int(zone[1:3]) * 60 + int(zone[4:]))
    return (int(found["hour"]) * 60 + int(found["minute"]) - offset) % 1440 == 1439


def _date_time(text: str) -> bool:
    if text[10:11] not in ("T", "t") or not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text[:10]):
        return False
    datetime.date.fromisoformat(text[:10])
    return _time(text[11:])


def _email(text: str) -> bool:
    local, _, domain = text.rpartition("@")
    if len(local) > 64 or not re.fullmatch(LOCAL, local):
        return False
    if domain.startswith("[") and domain.endswith("]"):
        address = domain[1:-1]
        ipaddress.ip_address(address.removeprefix("IPv6:") if address.startswith("IPv6:") else address)
        return True
    return re.fullmatch(HOST, domain) is not None


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda text: compiled.fullmatch(text) is not None


def _of_text(check: Callable[[str], bool]) -> Callable[[object], bool]:
    """A format says nothing of a value that is not text."""
    return lambda value: not isinstance(value, str) or check(value)


FORMATS = FormatChecker(("date", "ipv4", "ipv6", "regex", "idn-email"))
for _name, _check in {"date-time": _date_time, "time": _time, "email": _email}.items():
    FORMATS.checks(_name, ValueError)(_of_text(_check))
for _name, _pattern in PATTERNS.items():
    FORMATS.checks(_name)(_of_text(_matches(_pattern)))
