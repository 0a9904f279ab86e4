"""Benchmarks that a cascade measures around its stages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cascade_rl.rl_stages.config.node import Node, at_least, require

Modes = Literal["template", "on", "off", "both"]


@dataclass(frozen=True, kw_only=True)
class BenchmarkSuite(Node):
    """A suite of benchmarks, as `cascade eval --suite` reads it (docs/evaluate.md).

    suite     name of a shipped one, or path of a .toml file
    folder    where the rows of its benchmarks are
    only      benchmarks of it that are measured; all if there are none
    thinking  mode that the chat template is asked for, on, off or both; None: the suite's
    answers   benchmark -> answers to each of its prompts; otherwise the suite's number
    max_new_tokens  tokens that an answer may have; None: the suite's number
    """

    suite: str
    folder: str
    only: tuple[str, ...] = ()
    thinking: Modes | None = None
    answers: Mapping[str, int] = field(default_factory=dict)
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        where = f"evaluation.suites ({self.suite})"
        for benchmark, count in self.answers.items():
            require(count >= 1, f"{where}.answers.{benchmark}", "at least 1", count)
        if self.max_new_tokens is not None:
            at_least(1, where, self, "max_new_tokens")
