"""``scorer serve``: the server process."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class ServerRole(StrEnum):
    """Whether a server answers requests or observes those of live servers."""

    LIVE = "live"
    SHADOW = "shadow"


def serve(
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", help="Settings file of the server.")
    ] = Path("scorer.toml"),
    role: Annotated[
        ServerRole | None,
        typer.Option(
            help="Role of the server, which overrides the settings. A shadow server does not answer requests."
        ),
    ] = None,
) -> None:
    """Serve the checkpoints of a settings file until SIGTERM or SIGINT.

    Writes one JSON event per line to stderr. Exit codes: 0 stopped cleanly, 1 failed, 64 bad settings.
    """
    from scorer.serve import run

    raise typer.Exit(run(config, role=role and role.value))
