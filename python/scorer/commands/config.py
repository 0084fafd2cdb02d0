"""``scorer config``: check settings files, or print an example."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scorer.cli import TYPER_OPTIONS

app = typer.Typer(help="Check settings, or print an example.", no_args_is_help=True, **TYPER_OPTIONS)


@app.command()
def check(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="TOML file; SCORER_ environment variables override it.")
    ],
) -> None:
    """Check a settings file. Exit codes: 0 valid, 64 not valid, with every error listed."""
    from scorer import config

    settings = config.load(file)
    server = settings.server
    typer.echo(f"{file}: ok")
    listening = ", ".join(str(place) for place in (server.listen, server.uds) if place is not None)
    metrics = server.metrics_listen or "off"
    log = settings.log.dir or "off"
    typer.echo(f"  scoring {listening}; metrics {metrics}; control {server.control_listen}")
    typer.echo(f"  registry {settings.registry.path}; state {server.state_dir}; decision log {log}")
    for name, checkpoint in settings.checkpoints.items():
        fallback = "with a fallback" if checkpoint.fallback else "no fallback"
        typer.echo(
            f"  {name}: {checkpoint.kind}, follows {checkpoint.alias}, p99 {checkpoint.p99_ms:g} ms, "
            f"log {checkpoint.effective_durability}, {fallback}"
        )


@app.command()
def example() -> None:
    """Print a complete, commented settings file."""
    from scorer.config.example import server_example as text

    typer.echo(text(), nl=False)
