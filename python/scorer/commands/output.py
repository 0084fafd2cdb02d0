"""Output of commands: tables for terminals, and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from scorer.durable import write_atomically
from scorer.errors import BundleError


def print_json(value: Any) -> None:
    """Print a JSON document on stdout."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str, width: int = 240
) -> None:
    """Print a table that fits the terminal.

    Args:
        columns: Headings.
        rows: Cells of each row.
        empty: Text to print if there are no rows.
        width: Width of the output in characters if it is not a terminal. Wider cells are folded.
    """
    if not rows:
        typer.echo(empty)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        # The first column identifies the row and is never cut.
        table.add_column(column, no_wrap=index == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        # Piped output has one line per row, for grep.
        console = Console(markup=False, highlight=False, width=width)
    console.print(table)


def when(milliseconds: int) -> str:
    """Format a time as local time, to the second."""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def short(digest: str | None) -> str:
    """Return the first twelve digits of a digest, which usually suffice to identify it."""
    return (digest or "").removeprefix("sha256:")[:12] or "-"


def size(count: int) -> str:
    """Format a number of bytes with a unit."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def check_directory(directory: Path) -> None:
    """Refuse an output directory that is a file, before any work. Raises BundleError."""
    if directory.exists() and not directory.is_dir():
        raise BundleError(f'output "{directory}": it is a file; give a directory')


def write_texts(directory: Path, texts: Mapping[str, str]) -> None:
    """Write files; a reader sees the old or the new content of each, never a part.

    Args:
        directory: The directory, which is created if it does not exist.
        texts: Content by file name.

    Raises:
        BundleError: A file cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomically(directory / name, text.encode())
    except OSError as error:
        raise BundleError(f'output "{directory}": it cannot be written: {error.strerror}') from error
