"""``scorer learn``: from logged decisions and outcomes to a better bundle, with the evidence."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

from scorer.cli import TYPER_OPTIONS

# Each step: its module here, whose function has the module's name, and its line of help.
STEPS: dict[str, str] = {
    "config": "Print a commented learn.toml, or check one.",
}


class _Steps(TyperGroup):
    """Lists every step, imports one."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(STEPS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in STEPS:
            return None
        function = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), cmd_name)
        single = typer.Typer(**TYPER_OPTIONS)
        single.command(cmd_name, short_help=STEPS[cmd_name])(function)
        command = typer.main.get_command(single)
        command.name = cmd_name
        return command


app = typer.Typer(
    help="Learn from decisions and their outcomes.", no_args_is_help=True, cls=_Steps, **TYPER_OPTIONS
)


@app.callback()
def _learn() -> None:
    """Learn from decisions and their outcomes."""
