"""``scorer causal delta-cv``: the value of adopting a product."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.commands.output import print_json, print_table
from scorer.commands.progress import work_bar

if TYPE_CHECKING:
    from scorer.causal.results import Bounded, DeltaCV

_PER_CENT = 100


def delta_cv(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Parquet or CSV file, or directory of Parquet files: one row per unit and month.",
        ),
    ],
    task: Annotated[
        Path | None,
        typer.Option(
            "--task", metavar="FILE", help="Settings of the task (TOML, [causal]); default: all defaults."
        ),
    ] = None,
    adoptions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Table of adoptions; default: the one of the task, or a column of DATA."
        ),
    ] = None,
    product: Annotated[str | None, typer.Option(help="The product; default: the one of the task.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="HTML file for the report.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON file for the result; default: beside the report, as .json."),
    ] = None,
    logged: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Result of `scorer learn evaluate --json`, shown beside. May be given several times.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Estimate what adopting a product is worth, against matched units that never adopted.

    The result is the cumulative value per adopter with intervals, checks, and the verdict whether it can be
    relied on. Progress is shown on stderr.
    """
    from scorer.causal.analysis import delta_cv as analyse
    from scorer.causal.logged import read_logged
    from scorer.causal.page import causal_page
    from scorer.causal.settings import CausalSettings, load
    from scorer.durable import write_atomically

    settings = load(task) if task is not None else CausalSettings()
    if product is not None:
        settings = settings.model_copy(update={"product": product})
    estimates = [read_logged(one) for one in logged or []]
    with work_bar("delta CV") as bar:
        found = analyse(data, settings, adoptions=adoptions, logged=estimates, advance=_advance(bar))
    if output is not None:
        write_atomically(output, causal_page(found).encode())
        json_file = json_file or output.with_suffix(".json")
    if json_file is not None:
        found.write(json_file)
    if json:
        print_json(found.document())
        return
    _print(found)


def config() -> None:
    """Print a complete, commented file of a task."""
    from scorer.causal.settings import example

    typer.echo(example(), nl=False)


def _advance(bar: Callable[[str, int, int | None], None] | None) -> Callable[[str, float], None]:
    if bar is not None:
        shown = bar
        return lambda step, share: shown(step, round(share * _PER_CENT), _PER_CENT)
    last = [""]

    def line(step: str, _share: float) -> None:
        # Without a terminal, one line for each step, for logs.
        if step != last[0]:
            last[0] = step
            sys.stderr.write(f"{step}\n")

    return line


def _print(found: DeltaCV) -> None:
    from scorer.causal.page import CHECK_COLUMNS, check_rows

    money = f" {found.currency}" if found.currency else ""
    typer.echo(f"{found.product or 'adoption'}: {found.verdict}")
    rows = [
        (
            one.cohort or "all",
            str(one.horizon),
            f"{one.matched:,} of {one.adopters:,}",
            _amount(one.mean) + money,
            _amount(one.median) + money,
            f"{one.pre_difference:+,.2f}",
            f"{one.differences:+,.2f}",
            f"{one.naive:+,.2f}",
        )
        for one in found.effects
    ]
    columns = ("cohort", "months", "matched", "mean", "median", "before", "diff-in-diff", "naive")
    print_table(columns, rows, empty="no effects", width=180)
    typer.echo("")
    print_table(CHECK_COLUMNS, check_rows(found), empty="", width=180)
    for reason in found.reasons:
        typer.echo(f"unreliable: {reason.name}: {reason.text}")
    for finding in found.findings:
        typer.echo(f"{finding.count:,} {finding.effect}: {finding.name}; {finding.rule}")
    for note in found.notes:
        typer.echo(note)


def _amount(one: Bounded) -> str:
    bounds = "" if one.low is None or one.high is None else f" ({one.low:+,.2f} to {one.high:+,.2f})"
    return f"{one.value:+,.2f}{bounds}"
