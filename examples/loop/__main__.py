"""``python -m examples.loop``: learning for weeks on simulated payments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from examples.command_line import run
from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table
from scorer.commands.progress import steps_bar

app = typer.Typer(help="Run learning for weeks on simulated payments.", no_args_is_help=True, **TYPER_OPTIONS)


@app.callback()
def _loop() -> None:
    """Run learning for weeks on simulated payments."""


@app.command()
def compare(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for the chart, the page and numbers."),
    ],
    weeks: Annotated[int, typer.Option(min=1, max=52, help="How long the A/B test runs.")] = 9,
    payments: Annotated[int, typer.Option(min=500, help="A week, both arms together.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the traffic: the same seed, the same figures.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The article's two-month comparison, simulated: A/B-tested rules per issuer against weekly retraining.

    Shoppers are split in halves by a keyed hash. The difference has a confidence sequence that may be
    read every day. Issuers drift in week 6.
    """
    from dataclasses import asdict

    from examples.loop import chart
    from examples.loop.comparison import compare as run_comparison

    with steps_bar("comparing", weeks) as advance:
        found = run_comparison(weeks, payments, seed, advance=advance)
    picture, page = chart.write(found, output)
    if json:
        print_json(asdict(found))
        return
    print_table(chart.COLUMNS, chart.rows(found), empty="no week")
    for text in [*chart.verdict(found), f"{picture} and {page}"]:
        typer.echo(text)


if __name__ == "__main__":
    run(app, "python -m examples.loop")
