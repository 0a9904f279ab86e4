"""docs/configuration.md: every key of every configuration class, from the classes themselves. Torch-free."""

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args, get_type_hints

from cascade_rl.launchers.help.key import as_typed, in_words
from cascade_rl.launchers.help.sentences import introduction, sentence
from cascade_rl.rl_stages.config.cascade import STAGE_KINDS, Cascade
from cascade_rl.rl_stages.config.differences import default_of
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage

HEAD = """# Configuration

A launcher file builds one `Cascade`; a setting such as `if_rl.optimizer.lr=1e-3` on the command line changes one of its
keys. This page is made from the classes: `UPDATE_GOLDEN=1 pytest tests/launchers/help` writes it. `nemo-run LAUNCHER.py
--help KEY` says the same of one launcher, with its values.

A key that begins with a stage's name is one of that stage. `null` stands for Python's `None`, commas part the items of
a list. A key without a default must be given. A kind of stage has all keys of `Stage`, and one that samples those of
`OnPolicyStage`; its own table holds what it adds, and what has another default there.
"""


def configuration_page() -> str:
    return "\n".join([HEAD, *(_section(cls) for cls in configured())])


def configured() -> list[type[Any]]:
    """All classes of a cascade's tree, from the top; a stage's own nodes come after its kinds."""
    found: list[type[Any]] = []
    _collect(Cascade, found)
    return found


def _collect(hint: Any, found: list[type[Any]]) -> None:
    if hint in found:
        return
    if not (isinstance(hint, type) and is_dataclass(hint)):
        for inner in get_args(hint):
            _collect(inner, found)
        return
    classes = [Stage, OnPolicyStage, *STAGE_KINDS.values()] if hint is Stage else [hint]
    found.extend(classes)
    for cls in classes:
        for inner in get_type_hints(cls).values():
            _collect(inner, found)


def _section(cls: type[Any]) -> str:
    lines = ["| key | type | default | |", "|---|---|---|---|", *_rows(cls)]
    return "\n".join([f"## {cls.__name__}", "", _escaped(introduction(cls)), "", *lines, ""])


def _rows(cls: type[Any]) -> Iterator[str]:
    hints = get_type_hints(cls)
    for item in fields(cls):
        if item.name in vars(cls)["__annotations__"]:
            cells = (f"`{item.name}`", _type(hints[item.name]), _default(item), _escaped(sentence(cls, item.name)))
            yield f"| {' | '.join(cells)} |"


def _type(hint: Any) -> str:
    inner = [each for each in (hint, *get_args(hint)) if isinstance(each, type) and is_dataclass(each)]
    return f"[{inner[0].__name__}](#{inner[0].__name__.lower()})" if inner else in_words(hint)


def _default(item: Any) -> str:
    value = default_of(item)
    if value is MISSING:
        return ""
    if is_dataclass(value) and not isinstance(value, type):
        return ", ".join(f"`{name}={as_typed(given)}`" for name, given in _given(value)) or "its defaults"
    return f"`{as_typed(value)}`" if value not in ((), {}) else "none"


def _given(node: Any) -> Iterator[tuple[str, Any]]:
    for item in fields(node):
        if getattr(node, item.name) != default_of(item):
            yield item.name, getattr(node, item.name)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
