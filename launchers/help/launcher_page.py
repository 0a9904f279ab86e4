"""What `nemo-run LAUNCHER.py --help [KEY]` says of a cascade's keys. Torch-free."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, is_dataclass
from textwrap import fill, shorten

from cascade_rl.launchers.help.key import Key, as_typed, find, in_words, keys_below
from cascade_rl.rl_stages.config.cascade import Cascade

WIDTH = 120
COLUMN = 46  # where meanings begin


def overview(cascade: Cascade) -> str:
    """The keys of the cascade itself, and one line for each stage and each other node."""
    keys = [key for key in keys_below(Key("", Cascade, cascade, MISSING, "")) if key.node is None]
    settings = fill(" ".join(f"{key.path}={as_typed(key.value)}" for key in keys), WIDTH - 2)
    stages = {stage.name: f"{stage.kind}, {stage.steps:,} steps" for stage in cascade.stages}
    nodes = {"base": "the model", "evaluation": "held-out scores", "parallel": "training ranks", "rollout": "engines"}
    lines = [f"  {name:<22}{told}" for name, told in (nodes | stages).items()]
    return "\n".join(["keys, for --help KEY and for KEY=VALUE:", f"  {settings}", *lines])


def explain(cascade: Cascade, path: str) -> str:
    """Everything about one key, or a line for each key below it. Raises UserError for an unknown key."""
    key = find(cascade, path)
    told = fill(key.meaning, WIDTH)
    if key.node is not None:
        return "\n".join([told, "", *_lines(key)]).lstrip()
    default = "none, it must be given" if key.default is MISSING else as_typed(key.default)
    facts = {"type": in_words(key.hint), "default": default, "unit": key.unit}
    return "\n".join(
        [f"{path}={as_typed(key.value)}", told, *(f"{name}: {fact}" for name, fact in facts.items() if fact)]
    )


def _lines(key: Key) -> Iterator[str]:
    for below in keys_below(key):
        if below.value and (is_dataclass(below.value) or isinstance(below.value, Mapping)):
            yield from _lines(below)
        else:
            yield _line(f"  {below.path}={as_typed(below.value)}", below.meaning)


def _line(setting: str, meaning: str) -> str:
    room = max(WIDTH - max(len(setting), COLUMN) - 2, 30)
    return f"{setting:<{COLUMN}}  {shorten(meaning, room, placeholder=' ...')}".rstrip()
