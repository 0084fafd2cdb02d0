"""``scorer learn report``: write the report over generations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS_DIR", help="Directory with the verdicts of `scorer learn gate`.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="HTML file to write; default: RUNS_DIR/history.html."
        ),
    ] = None,
) -> None:
    """Render the history over generations as one self-contained HTML page."""
    from scorer.durable import write_atomically
    from scorer.learn.report.history import history_page, read_runs

    target = output or runs / "history.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, history_page(read_runs(runs)).encode())
    typer.echo(str(target))
