"""What a ledger's file says was done, for tests that must find nothing done twice."""

from collections.abc import Iterator
from pathlib import Path

from cascade_rl.engine.core.rollouts import PART
from cascade_rl.rl_stages.run.append_log import read_records
from cascade_rl.rl_stages.run.ledger import _unpacked


def finished_work(path: Path) -> Iterator[tuple[str, str]]:
    """All work in the order of the records: ("sample" or "verdict", sample id). Work done twice appears twice."""
    for record in map(_unpacked, read_records(path)):
        yield from (("verdict", name) for name in record.get("verdicts", ()))
        if record.get("finish", PART) != PART:
            yield "sample", record["id"]
