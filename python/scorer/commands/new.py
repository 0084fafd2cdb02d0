"""``scorer new``: make a project folder from a template."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.cli import TYPER_OPTIONS

if TYPE_CHECKING:
    from scorer.templates.project import Kind

app = typer.Typer(help="Make a project folder of your own.", no_args_is_help=True, **TYPER_OPTIONS)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the project and of its bundles, such as checkout.")
]
Into = Annotated[
    Path | None,
    typer.Option("--directory", metavar="DIR", help="Folder to create; default: NAME in this folder."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the files, and write nothing.")]


@app.command()
def fraud(name: Name, directory: Into = None, dry_run: DryRun = False) -> None:
    """Make a project that trains, builds, checks and serves a fraud model."""
    _new("fraud", name, directory, dry_run)


@app.command()
def action(name: Name, directory: Into = None, dry_run: DryRun = False) -> None:
    """Make a project that trains, builds, checks and serves a policy for payment actions."""
    _new("action", name, directory, dry_run)


def _new(kind: Kind, name: str, directory: Path | None, dry_run: bool) -> None:
    from scorer.templates.project import check_place, project_files, write_project

    files = project_files(kind, name)
    folder = directory or Path(name)
    if dry_run:
        check_place(folder)
        for path in files:
            typer.echo(folder / path)
        return
    write_project(folder, files)
    typer.echo(f"{folder}: {len(files)} files; continue with {folder / 'README.md'}")
