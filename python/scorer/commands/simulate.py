"""``scorer simulate``: data where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scorer.cli import TYPER_OPTIONS

app = typer.Typer(help="Simulate transactions and authorisations.", no_args_is_help=True, **TYPER_OPTIONS)


@app.callback()
def _simulate() -> None:
    """Simulate transactions and authorisations."""


@app.command()
def transactions(
    to: Annotated[Path, typer.Option(metavar="FILE", help="Parquet file to write.")],
    customers: Annotated[int, typer.Option(help="Number of customers.")] = 5_000,
    terminals: Annotated[int, typer.Option(help="Number of terminals.")] = 10_000,
    days: Annotated[int, typer.Option(help="Number of days.")] = 183,
    start: Annotated[str, typer.Option(help="First day, YYYY-MM-DD.")] = "2018-04-01",
    radius: Annotated[float, typer.Option(help="Customers buy this near, on a 100 x 100 map.")] = 5.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same file.")] = 0,
) -> None:
    """Card transactions with three kinds of fraud, after the Fraud Detection Handbook's method."""
    from scorer.learn.transactions import write_transactions
    from scorer.simulate.transactions import TransactionPlan, simulate_transactions

    plan = TransactionPlan(customers=customers, terminals=terminals, days=days, start=start, radius=radius)
    made = simulate_transactions(plan, seed)
    write_transactions(made, to)
    share = float(made.fraud.mean())
    typer.echo(f"{to}: {len(made):,} transactions, {int(made.fraud.sum()):,} of them fraud ({share:.2%})")


@app.command()
def payments(
    to: Annotated[Path, typer.Option(metavar="FILE", help="Parquet file to write.")],
    rows: Annotated[int, typer.Option(min=1, help="Number of payments; with --weeks, of a week.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same file.")] = 0,
    weeks: Annotated[
        int, typer.Option(min=0, help="Write this many weeks as experience, outcomes arriving late.")
    ] = 0,
    shock: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOUR:ISSUER:FACTOR=VALUE",
            help="With --weeks: from this hour on the issuer declines these actions.",
        ),
    ] = None,
) -> None:
    """Payments with the baseline's choices, their propensities and whether they were authorised.

    With --weeks the file is what `scorer learn` reads: whole pmfs, shoppers, times, and for every decision
    whether its outcome is known, still on its way or missing. Issuers drift in week 6.
    """
    if weeks == 0 and shock:
        raise typer.BadParameter("--shock needs --weeks")
    if weeks == 0:
        from scorer.simulate.export import write_baseline_log

        logged = write_baseline_log(to, rows, seed)
        rate = float(logged.authorised.mean())
        typer.echo(f"{to}: {len(logged):,} payments, {rate:.2%} of them authorised under the baseline")
        return
    from scorer.learn.experience import State
    from scorer.simulate.export import write_weeks
    from scorer.simulate.weeks import Shock, WeeksPlan

    shocks = tuple(Shock.parse(text) for text in shock or ())
    known = write_weeks(to, WeeksPlan(weeks=weeks, per_hour=rows / 168, shocks=shocks), seed)
    settled = known.settled()
    counts = ", ".join(f"{int((known.state == s).sum()):,} {s.name.lower().replace('_', ' ')}" for s in State)
    typer.echo(
        f"{to}: {len(known):,} payments of {weeks} weeks ({counts}),"
        f" {float(settled.reward.mean()):.2%} of the settled authorised under the baseline"
    )


@app.command()
def task(
    to: Annotated[Path, typer.Option(metavar="DIR", help="Directory to write; its name names the task.")],
) -> None:
    """What simulated payments are to learn for `scorer learn train`: their columns and actions."""
    from scorer.learn.training.tasks import write_task
    from scorer.simulate.task import authorise_task

    of = authorise_task()
    write_task(of, to)
    typer.echo(f"{to}: {len(of.context)} columns, {len(of.actions)} actions")
