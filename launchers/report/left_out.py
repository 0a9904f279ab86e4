"""The report of a command on data, as a table: what is kept and what is left out, why, and the first such rows."""

from cascade_rl.rl_stages.data.sift import Report

SHOWN = 110  # characters of a reason and of an example


def show(report: Report, title: str, wrong: str) -> None:
    """Prints the table. `wrong` is the word for what is left out."""
    from rich.console import Console  # takes as long as the rest of a command's help
    from rich.table import Table

    table = Table("kept", "rows")
    table.columns[1].justify = "right"
    for name, count in sorted(report.kept.items()):
        table.add_row(name, f"{count:,}")
    for reason, count in report.dropped.most_common():
        table.add_row(f"{wrong}: {reason[:SHOWN]}", f"{count:,}", style="red")
        for example in report.examples[reason]:
            table.add_row(f"  {example[:SHOWN]}", "", style="dim")
    console = Console(highlight=False, markup=False)
    console.print(title, soft_wrap=True)
    console.print(table)
