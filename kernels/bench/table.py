"""The results: a line as each one arrives, a table at the end, and JSON."""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import triton

_COLUMNS = {  # field of Row: title, format
    "forward_ms": ("forward ms", ".2f"),
    "both_ms": ("both ms", ".2f"),
    "forward_share": ("fwd share", ".2f"),
    "both_share": ("both share", ".2f"),
    "peak_mb": ("peak MB", ".0f"),
    "error": ("error", ".1e"),
    "gradient_error": ("grad error", ".1e"),
}


@dataclass(frozen=True)
class Row:
    """One provider at one shape. `note` says why it has no time."""

    op: str
    provider: str
    shape: str
    forward_ms: float | None = None
    both_ms: float | None = None
    forward_share: float | None = None  # time of the products that any provider needs, over the time measured
    both_share: float | None = None
    peak_mb: float | None = None  # MiB on top of the inputs, forward and backward; GPU only
    error: float | None = None  # largest error of the log-prob or KL against float64
    gradient_error: float | None = None  # relative, Frobenius norm, against float64; of the worst leaf
    note: str = ""

    def __str__(self) -> str:
        cells = [
            "" if (number := getattr(self, name)) is None else format(number, form)
            for name, (_, form) in _COLUMNS.items()
        ]
        return _line(self.op, self.shape, self.provider, cells) + f"  {self.note}"


def _line(op: str, shape: str, provider: str, cells: list[str]) -> str:
    return f"{op:20} {shape:22} {provider:20}" + "".join(f"{cell:>11}" for cell in cells)


@dataclass
class Report:
    """The rows of a run. `finish` writes json_path, if there is one."""

    device: str
    json_path: Path | None = None
    rows: list[Row] = field(default_factory=list)
    gate: list[str] = field(default_factory=list)  # faults that the compile gate found

    def add(self, row: Row) -> None:
        print(row, flush=True)
        self.rows.append(row)

    def finish(self, stopped: str = "") -> int:
        """Prints the table, writes the file. 1 if the run stopped, the gate failed or one of our numbers is missing."""
        titles = [title for title, _ in _COLUMNS.values()]
        print("\n" + _line("op", "tokens x hidden x vocab", "provider", titles))
        print("\n".join(map(str, self.rows)))
        complaints = self.gate + [f"stopped: {stopped}"] * bool(stopped)
        print("\n".join(complaints), flush=True)
        if self.json_path is not None:
            self.json_path.write_text(json.dumps(self._json(stopped), indent=1) + "\n")
        lacking = [row for row in self.rows if row.provider in ("ours", "all") and row.note]
        return int(bool(complaints or lacking))

    def give_up(self, reason: str) -> None:
        self.finish(stopped=reason)
        sys.stdout.flush()

    def _json(self, stopped: str) -> dict[str, object]:
        versions = {"torch": torch.__version__, "triton": triton.__version__}
        rows = [asdict(row) for row in self.rows]
        return {"device": self.device, **versions, "rows": rows, "gate": self.gate, "stopped": stopped}
