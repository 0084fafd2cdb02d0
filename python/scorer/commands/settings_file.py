"""What the commands `config` share: they print an example of a settings file, or check one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

SettingsArgument: TypeAlias = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="File to check; default: print a commented example."),
]


def print_or_check(file: Path | None, example: Callable[[], str], load: Callable[[Path], object]) -> None:
    """Print an example, or load a file and report that it is valid."""
    if file is None:
        typer.echo(example(), nl=False)
        return
    load(file)
    typer.echo(f"{file}: ok")
