"""``scorer causal``: what adoption is worth where nothing was randomised."""

from __future__ import annotations

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.causal.delta import config, delta_cv
from scorer.commands.causal.merchants import merchants

app = typer.Typer(
    help="Estimate what adopting a product is worth where nothing was randomised.",
    no_args_is_help=True,
    **TYPER_OPTIONS,
)
app.command("delta-cv", short_help="Estimate the value of adopting a product.")(delta_cv)
app.command("merchants", short_help="Write the table of merchants that adopted a policy, from logs.")(
    merchants
)
app.command("config", short_help="Print a commented file of a task.")(config)
