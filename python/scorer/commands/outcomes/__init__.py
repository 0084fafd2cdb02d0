"""``scorer outcomes``: how late outcomes come, and the import of many of them."""

from __future__ import annotations

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.outcomes.importing import import_outcomes
from scorer.commands.outcomes.maturity import maturity

app = typer.Typer(
    help="Outcomes: how late they come, and the import of files.", no_args_is_help=True, **TYPER_OPTIONS
)
app.command("maturity", short_help="Estimate how late the outcomes of each kind come.")(maturity)
app.command("import", short_help="Report the outcomes of a file to servers.")(import_outcomes)


@app.callback()
def _outcomes() -> None:
    """Outcomes: how late they come, and the import of files."""
