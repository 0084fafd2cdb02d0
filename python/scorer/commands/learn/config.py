"""``scorer learn config``: the settings file, printed or checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def config(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A file to check; none: print a commented one.")
    ] = None,
) -> None:
    """Print a complete, commented learn.toml, or check one: exit 64 with every mistake listed."""
    from scorer.learn import settings

    if file is None:
        typer.echo(settings.example(), nl=False)
        return
    settings.load(file)
    typer.echo(f"{file}: ok")
