"""``scorer demo``: the whole way through."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    transactions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Parquet file of transactions; default: the handbook's in ../shared/data, else simulated.",
        ),
    ] = None,
    routing: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV file of routed payment attempts; default: the one in ../shared/data, else none.",
        ),
    ] = None,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Simulate the transactions and leave the routing log out.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where everything is written; default: demo-output.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Everything once, small.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same models.")] = 0,
) -> None:
    """Train, publish, serve, replay and swap, end to end, on real or simulated transactions."""
    from scorer.demo.plan import HANDBOOK, ROUTING, DemoPlan, Places, default_input, project_root
    from scorer.demo.run import run_demo

    if simulated and (transactions or routing):
        raise typer.BadParameter("--simulated excludes --transactions and --routing")
    if not simulated:
        transactions = transactions or default_input(HANDBOOK)
        routing = routing or default_input(ROUTING)
    places = Places(
        transactions=transactions,
        routing=routing,
        output=(output or project_root() / "demo-output").resolve(),
    )
    run_demo(places, DemoPlan.quick() if quick else DemoPlan.full(), seed)
