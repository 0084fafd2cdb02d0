"""``scorer ship``: copy a decision log to a Delta table or to Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.settings_file import SettingsArgument, print_or_check

app = typer.Typer(
    help="Ship a decision log to a Delta table or to Kafka, until SIGTERM.",
    invoke_without_command=True,
    **TYPER_OPTIONS,
)


@app.callback()
def ship(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="Settings file; default: ./ship.toml if it exists."
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option("--log", "-l", metavar="DIR", help="Decision log, instead of that of the settings."),
    ] = None,
    server: Annotated[
        str | None, typer.Option("--server", metavar="ID", help="Id of the server in the shipped records.")
    ] = None,
    delta: Annotated[
        str | None, typer.Option("--delta", metavar="URL", help="Directory or URL of the Delta tables.")
    ] = None,
    kafka: Annotated[
        str | None, typer.Option("--kafka", metavar="HOST:PORT,...", help="Brokers of Kafka.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="NAME", help="Topic of Kafka for the records.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Ship what the log holds now, and exit.")] = False,
    accept_new_log: Annotated[
        bool,
        typer.Option("--accept-new-log", help="Ship a log that replaces the one this server shipped before."),
    ] = False,
) -> None:
    """Ship a decision log to a Delta table or to Kafka, each record exactly once.

    A server may write to the log at the same time. Exit codes: 0 stopped, or done with --once; 1 failed, a
    restart continues; 64 bad settings.
    """
    if context.invoked_subcommand is not None:
        return
    from scorer.ship.settings import ShipSettings, load
    from scorer.ship.shipper import run

    default = Path("ship.toml")
    settings = load(config or (default if default.exists() else None))
    changes: dict[str, dict[str, object]] = {
        "ship": {"log": log, "server": server},
        "delta": {"url": delta},
        "kafka": {"servers": kafka, "topic": topic, "positions": topic and f"{topic}-positions"},
    }
    document = settings.model_dump()
    for section, values in changes.items():
        document[section] |= {key: value for key, value in values.items() if value is not None}
    run(ShipSettings.model_validate(document), once=once, accept_new_log=accept_new_log)


@app.command("config")
def config_(
    file: SettingsArgument = None,
) -> None:
    """Print a complete, commented ship.toml, or check one. Exit code 64 if it is not valid."""
    from scorer.ship.settings import example, load

    print_or_check(file, example, load)
