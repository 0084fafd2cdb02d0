"""Command line of the demo: ``python -m examples.demo``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from examples.command_line import run
from scorer.cli import TYPER_OPTIONS

app = typer.Typer(**TYPER_OPTIONS)


@app.command()
def demo(
    transactions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Parquet file of transactions; default: the handbook's in $SCORER_DATASETS, else simulated.",
        ),
    ] = None,
    routing: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV file of routed payment attempts; default: the one in $SCORER_DATASETS, else none.",
        ),
    ] = None,
    simulated: Annotated[
        bool,
        typer.Option("--simulated", help="Simulate the transactions and ignore $SCORER_DATASETS."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory for all files; default: demo-output.")
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Also learn two generations, and test a model through the platform."),
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Run every step on small data.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of data and training.")] = 0,
) -> None:
    """Train, publish, serve and swap models, and score real or simulated transactions."""
    # Idle threads of the numeric libraries sleep instead of spinning; the libraries read this when they load.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from examples.datasets import HANDBOOK, ROUTING, present
    from examples.demo.plan import DemoPlan, Paths, project_root
    from examples.demo.process import end_on_sigterm
    from examples.demo.run import run_demo

    if simulated and transactions:
        raise typer.BadParameter("--simulated and --transactions exclude each other")
    if not simulated:
        transactions = transactions or present(HANDBOOK)
        routing = routing or present(ROUTING)
    paths = Paths(
        transactions=transactions,
        routing=routing,
        output=(output or project_root() / "demo-output").resolve(),
    )
    end_on_sigterm()
    run_demo(paths, DemoPlan.quick() if quick else DemoPlan.normal(), seed, full=full)


if __name__ == "__main__":
    run(app, "python -m examples.demo")
