"""What each field of a configuration class means, from the table in the class's docstring.

An entry begins at the margin with the names of fields, then two or more spaces and what they mean; its other lines are
indented:

    lr, min_lr  learning rate after the warm-up,
                and at the end of a decay
"""

import inspect
import re
from dataclasses import fields, is_dataclass
from typing import Any

_ENTRY = re.compile(r"(?P<names>\w+(?:, \w+)*) {2,}(?P<text>\S.*)")


def sentence(cls: type[Any], name: str) -> str:
    """What field `name` means: as the class says, or the nearest base class. Raises KeyError if none does."""
    owners = [_entries(owner) for owner in cls.__mro__ if is_dataclass(owner)]
    return next((entries[name] for entries in owners if name in entries), "") or _missing(cls, name)


def introduction(cls: type[Any]) -> str:
    """The paragraphs of the docstring before and between the entries."""
    paragraphs = re.split(r"\n\s*\n", _text(cls))
    return "\n\n".join(" ".join(each.split()) for each in paragraphs if not _ENTRY.match(each))


def _entries(cls: type[Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    names: list[str] = []
    for line in _text(cls).splitlines():
        entry = _ENTRY.fullmatch(line)
        if entry:
            names = entry["names"].split(", ")
            found |= dict.fromkeys(names, entry["text"])
        elif line[:1] == " ":
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return {name: text for name, text in found.items() if name in {item.name for item in fields(cls)}}


def _text(cls: type[Any]) -> str:
    return inspect.cleandoc(vars(cls)["__doc__"] or "")


def _missing(cls: type[Any], name: str) -> str:
    raise KeyError(f"the docstring of {cls.__name__} has no entry for its field {name}")
