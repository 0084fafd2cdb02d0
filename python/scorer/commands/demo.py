"""``scorer demo``: the whole way through."""

from __future__ import annotations

import os
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
        bool, typer.Option("--simulated", help="Simulate the transactions; ignore files in ../shared/data.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where everything is written; default: demo-output.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Everything once, small.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same models.")] = 0,
) -> None:
    """Train, publish, serve, replay and swap, end to end, on real or simulated transactions."""
    # Threads that wait must not burn a core: the machine may be busy. Read when the libraries load.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from scorer.demo.plan import HANDBOOK, ROUTING, DemoPlan, Places, default_input, project_root
    from scorer.demo.process import end_on_sigterm
    from scorer.demo.run import run_demo

    if simulated and transactions:
        raise typer.BadParameter("--simulated and --transactions exclude each other")
    if not simulated:
        transactions = transactions or default_input(HANDBOOK)
        routing = routing or default_input(ROUTING)
    places = Places(
        transactions=transactions,
        routing=routing,
        output=(output or project_root() / "demo-output").resolve(),
    )
    end_on_sigterm()
    run_demo(places, DemoPlan.quick() if quick else DemoPlan.full(), seed)
