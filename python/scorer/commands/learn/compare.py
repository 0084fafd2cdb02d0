"""``scorer learn compare``: the old solution against the one that learns, on simulated payments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scorer.commands.output import print_json, print_table
from scorer.commands.progress import steps_bar


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

    from scorer.learn.loop import chart
    from scorer.learn.loop.comparison import compare as run

    with steps_bar("comparing", weeks) as advance:
        found = run(weeks, payments, seed, advance=advance)
    picture, page = chart.write(found, output)
    if json:
        print_json(asdict(found))
        return
    print_table(chart.COLUMNS, chart.rows(found), empty="no week")
    for text in [*chart.verdict(found), f"{picture} and {page}"]:
        typer.echo(text)
