"""The report of a command on data, as a table: what is kept and what is left out, why, and the first such rows."""

from rich.console import Console
from rich.table import Table

from cascade_rl.rl_stages.data.sift import Report

SHOWN = 110  # characters of an example


def show(report: Report, title: str, wrong: str) -> None:
    """Prints the table. `wrong` is the word for what is left out."""
    table = Table("kept", "rows")
    table.columns[1].justify = "right"
    for name, count in sorted(report.kept.items()):
        table.add_row(name, f"{count:,}")
    for reason, count in report.dropped.most_common():
        table.add_row(f"{wrong}: {reason}", f"{count:,}", style="red")
        for example in report.examples[reason]:
            table.add_row(f"  {example[:SHOWN]}", "", style="dim")
    console = Console(highlight=False, markup=False)
    console.print(title, soft_wrap=True)
    console.print(table)
