"""``python -m examples.loop``: learning for weeks on simulated payments."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from examples.command_line import run
from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table
from scorer.commands.progress import steps_bar


class Structure(StrEnum):
    """Which worlds are played."""

    STANDARD = "standard"
    DRAWN = "drawn"


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
    """Simulate the article's comparison over two months: A/B-tested rules against weekly retraining.

    Shoppers are split in halves by a keyed hash. The difference has a confidence sequence that may be read
    every day. Issuers drift in week 6.
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


@app.command()
def worlds(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="JSON file to write.")],
    count: Annotated[
        int, typer.Option("--worlds", min=2, help="Number of worlds, the default one first.")
    ] = 11,
    weeks: Annotated[int, typer.Option(min=2, max=52, help="Weeks of a world; week 1 is uniform.")] = 9,
    payments: Annotated[int, typer.Option(min=500, help="Payments of a week.")] = 5_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the traffic.")] = 1,
    first_world: Annotated[int, typer.Option(min=0, help="Seed of the first other world.")] = 1,
    structure: Annotated[
        Structure,
        typer.Option(help="standard: a cycle of ten kinds; drawn: interactions, drift and issuers by seed."),
    ] = Structure.STANDARD,
    solution: Annotated[
        list[str] | None,
        typer.Option(help="Only this solution; repeat it for several. Ratios are of the first in the table."),
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keeps each result as a line, and continues from the lines."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Worlds at a time; a world takes one core.")] = 1,
) -> None:
    """Measure learning in worlds that it was not tuned on, beside a linear model, rules and Vowpal Wabbit.

    The output is the regret per payment by the hidden truth from week 2 on, and ratios with 95 % bootstrap
    intervals over worlds. Worlds with seeds from 10,000 on are for judging only.
    """
    # One thread per world, because worlds run in parallel.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from examples.loop import worlds as played
    from examples.simulators.worlds import drawn, standard

    specs = (drawn if structure == Structure.DRAWN else standard)(count, first_world)
    play = played.Play(weeks, payments, seed)
    with steps_bar("playing", len(specs)) as advance:
        measured = played.measure_all(specs, play, jobs, solution or (), lines, advance)
    settings = {
        "weeks": weeks,
        "payments": payments,
        "seed": seed,
        "first_world": first_world,
        "structure": structure.value,
    }
    content = played.as_dict(specs, measured, settings)
    if solution:
        # Vowpal Wabbit was not asked for, or it is there.
        content["skipped"] = []
    played.write(output, content)
    names = list(dict.fromkeys(one.solution for one in measured))
    rows = [
        [spec.name, *(f"{one.mean:.4f}" for name in names for one in measured if one.at(spec.name, name))]
        for spec in specs
    ]
    print_table(("regret per payment", *names), rows, empty="no world")
    for one in content["ratios"]:
        typer.echo(
            f"{one['solution']} / {one['peer']}: {one['value']:.2f} [{one['low']:.2f}, {one['high']:.2f}],"
            f" less regret in {one['less_in']} of {one['worlds']} worlds"
        )
    for text in content["skipped"]:
        typer.echo(f"skipped: {text}")
    typer.echo(str(output))


if __name__ == "__main__":
    run(app, "python -m examples.loop")
