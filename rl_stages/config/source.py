"""One entry of a stage's `data`: `PATH`, `PATH[:COUNT]`, `PATH*WEIGHT` or `PATH[:COUNT]*WEIGHT`. Torch-free.

("a.jsonl*0.55", "b.jsonl*0.3", "c.parquet*0.15")   shares of the samples
("a.jsonl[:1853]", "b.jsonl[:927]")                 exactly that many rows of each, chosen by the seed
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from cascade_rl.engine.core.errors import UserError

GENERATE = "generate:"
_ENTRY = re.compile(r"(?P<path>[^*\[\]]+)(?:\[:(?P<count>[^\]]*)\])?(?:\*(?P<weight>.*))?", re.DOTALL)


@dataclass(frozen=True)
class Source:
    """Where rows come from. `count` and `weight` are None if not given."""

    path: str
    count: int | None = None
    weight: Fraction | None = None

    @classmethod
    def parse(cls, text: str) -> "Source":
        """Raises UserError for any other form, and for a count or a weight that is not above 0."""
        match = _ENTRY.fullmatch(text)
        try:
            if match is None:
                raise ValueError
            count = None if match["count"] is None else int(match["count"])
            weight = None if match["weight"] is None else Fraction(match["weight"])
            if any(value is not None and value <= 0 for value in (count, weight)):
                raise ValueError
            return cls(match["path"], count, weight)
        except (ValueError, ZeroDivisionError):
            form = "PATH, PATH[:COUNT], PATH*WEIGHT or PATH[:COUNT]*WEIGHT, COUNT and WEIGHT above 0"
            raise UserError(f"expected {form}; found {text!r}") from None

    @property
    def generated(self) -> bool:
        return self.path.startswith(GENERATE)


def parse_sources(texts: Iterable[str]) -> list[Source]:
    """Raises UserError as `Source.parse` does, and if only some of the sources have a weight."""
    sources = [Source.parse(text) for text in texts]
    if len({source.weight is None for source in sources}) > 1:
        bare = next(source.path for source in sources if source.weight is None)
        raise UserError(f"expected a weight for every source or for none; found {bare!r} without a weight")
    return sources
