"""Tables of the scores before and after a stage, and of its times."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from cascade_rl.rl_stages.run.run_folder import StageSummary


def gain(before: float, after: float) -> Text:
    """The difference of two scores, coloured by its sign."""
    delta = after - before
    return Text(f"{delta:+.3f}", style="green" if delta > 0 else "red" if delta < 0 else "dim")


def score_table(summary: StageSummary) -> Table:
    """Held-out scores of every domain. The domain of the stage is bold."""
    table = Table()
    table.add_column(f"{summary.name} ({summary.steps} steps, {summary.seconds:.0f} s)")
    for heading in ("before", "after", "gain"):
        table.add_column(heading, justify="right")
    for domain, before in summary.before.items():
        after = summary.after[domain]
        style = "bold" if domain == summary.domain else ""
        table.add_row(domain, f"{before:.3f}", f"{after:.3f}", gain(before, after), style=style)
    return table


def score_line(summary: StageSummary) -> Text:
    """The same scores in one line: `instruction_following 0.350 -> 0.612 (+0.262), math ...`, and validation loss."""
    parts = [_score(domain, before, summary.after[domain]) for domain, before in summary.before.items()]
    if summary.validation_loss:
        first, last = summary.validation_loss
        parts.append(Text(f"validation loss {first:.3f} -> {last:.3f}"))
    return Text(", ").join(parts)


def phase_table(title: str, seconds: Iterable[tuple[str, float]]) -> Table:
    """Seconds per phase."""
    table = Table()
    table.add_column(title)
    table.add_column("seconds", justify="right")
    for phase, spent in seconds:
        table.add_row(phase, f"{spent:.3f}")
    return table


def _score(domain: str, before: float, after: float) -> Text:
    return Text.assemble(f"{domain} {before:.3f} -> {after:.3f} (", gain(before, after), ")")
