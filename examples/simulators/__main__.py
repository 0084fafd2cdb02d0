"""``python -m examples.simulators``: write simulated data for learning and tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from examples.command_line import run
from scorer.cli import TYPER_OPTIONS

app = typer.Typer(help="Simulate transactions and authorisations.", no_args_is_help=True, **TYPER_OPTIONS)


@app.callback()
def _simulate() -> None:
    """Simulate transactions and authorisations."""


@app.command("transactions")
def _transactions(
    to: Annotated[Path, typer.Option(metavar="FILE", help="Parquet file to write.")],
    customers: Annotated[int, typer.Option(help="Number of customers.")] = 5_000,
    terminals: Annotated[int, typer.Option(help="Number of terminals.")] = 10_000,
    days: Annotated[int, typer.Option(help="Number of days.")] = 183,
    start: Annotated[str, typer.Option(help="First day, YYYY-MM-DD.")] = "2018-04-01",
    radius: Annotated[
        float, typer.Option(help="Distance within which customers buy, on a 100 x 100 map.")
    ] = 5.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed; equal seeds write equal files.")] = 0,
) -> None:
    """Simulate card transactions with three kinds of fraud by the Fraud Detection Handbook's method."""
    from examples.fraud.transactions import write_transactions
    from examples.simulators.transactions import TransactionPlan, simulate_transactions

    plan = TransactionPlan(customers=customers, terminals=terminals, days=days, start=start, radius=radius)
    transactions = simulate_transactions(plan, seed)
    write_transactions(transactions, to)
    frauds = int(transactions.fraud.sum())
    typer.echo(
        f"{to}: {len(transactions):,} transactions, {frauds:,} of them fraud"
        f" ({frauds / len(transactions):.2%})"
    )


@app.command()
def payments(
    to: Annotated[Path, typer.Option(metavar="FILE", help="Parquet file to write.")],
    rows: Annotated[int, typer.Option(min=1, help="Number of payments; with --weeks, of a week.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed; equal seeds write equal files.")] = 0,
    weeks: Annotated[
        int, typer.Option(min=0, help="Write this many weeks as experience, outcomes arriving late.")
    ] = 0,
    world_seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --weeks: seed of the world, apart from the traffic's. Default: the demo's world.",
        ),
    ] = None,
    shock: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOUR:ISSUER:FACTOR=VALUE",
            help="With --weeks: from this hour on the issuer declines these actions.",
        ),
    ] = None,
) -> None:
    """Simulate payments with the baseline's choices, their propensities and whether they were authorised.

    With --weeks the file is the experience that `scorer learn` reads: pmfs, shoppers, times, and for every
    decision whether its outcome is known, in flight or missing. Issuers drift in week 6.
    """
    if weeks == 0 and (shock or world_seed is not None):
        raise typer.BadParameter("--shock and --world-seed need --weeks")
    if weeks == 0:
        from examples.simulators.export import write_baseline_log

        logged = write_baseline_log(to, rows, seed)
        rate = float(logged.authorised.mean())
        typer.echo(f"{to}: {len(logged):,} payments, {rate:.2%} of them authorised under the baseline")
        return
    from examples.simulators.export import write_weeks
    from examples.simulators.weeks import Shock, WeeksPlan
    from examples.simulators.worlds import OWN, WorldSpec
    from scorer.learn.experience import State

    shocks = tuple(Shock.parse(text) for text in shock or ())
    world = OWN if world_seed is None else WorldSpec(f"seed-{world_seed}", world_seed, world_seed + 1)
    known = write_weeks(to, WeeksPlan(weeks=weeks, per_hour=rows / 168, shocks=shocks), seed, world)
    settled = known.settled()
    counts = ", ".join(f"{int((known.state == s).sum()):,} {s.name.lower().replace('_', ' ')}" for s in State)
    typer.echo(
        f"{to}: {len(known):,} payments of {weeks} weeks ({counts}),"
        f" {float(settled.reward.mean()):.2%} of the settled authorised under the baseline"
    )


@app.command()
def task(
    to: Annotated[Path, typer.Option(metavar="DIR", help="Directory to write; the task takes its name.")],
) -> None:
    """Write the learning task of simulated payments for `scorer learn train`: context columns and actions."""
    from examples.simulators.task import authorise_task
    from scorer.learn.training.tasks import write_task

    written = authorise_task()
    write_task(written, to)
    typer.echo(f"{to}: {len(written.context)} columns, {len(written.actions)} actions")


if __name__ == "__main__":
    run(app, "python -m examples.simulators")
