"""How the commands of the examples end: as `scorer` itself does."""

from __future__ import annotations

import sys

import typer

from scorer.errors import ScorerError


def run(app: typer.Typer, program: str) -> None:
    """Run a command line and turn expected errors into one line on stderr.

    Args:
        app: the commands.
        program: the name that usage lines show, such as "python -m examples.loop".

    Raises:
        SystemExit: always; with the error's exit code, or 0.
    """
    try:
        app(prog_name=program)
    except ScorerError as error:
        for line in str(error).splitlines() or [type(error).__name__]:
            sys.stderr.write(f"error: {line}\n")
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"", "scorer", "examples"}:
            raise
        sys.stderr.write(f'error: the package "{error.name}" is missing; run `make build`\n')
        sys.exit(1)
