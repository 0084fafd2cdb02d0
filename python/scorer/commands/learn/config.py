"""``scorer learn config``: print an example of the settings file, or check one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def config(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="File to check; default: print a commented example."),
    ] = None,
) -> None:
    """Print a complete, commented learn.toml, or check one. Exit code 64 if it is not valid."""
    from scorer.learn import settings

    if file is None:
        typer.echo(settings.example(), nl=False)
        return
    settings.load(file)
    typer.echo(f"{file}: ok")
