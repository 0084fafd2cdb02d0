"""``scorer learn``: from logged decisions and outcomes to a better bundle, with the evidence."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

from scorer.cli import TYPER_OPTIONS

# Each step: its module here, whose function has the module's name, and its line of help.
STEPS: dict[str, str] = {
    "join": "Join decisions with their outcomes, as known at a moment.",
    "train": "Train the next generation and build its bundle.",
    "evaluate": "Estimate what a bundle would have earned on logged decisions.",
    "overlay": "Fit what moved since the live oracle was trained.",
    "run": "Run the steps of a generation, each once: join, train, evaluate, gate, publish.",
    "schedule": "Run the steps at their times.",
    "ab": "Compare lanes by the outcomes of their decisions.",
    "config": "Print a commented learn.toml, or check one.",
    "guardrails": "Check logged decisions against the guardrails; solve and control the prices of caps.",
    "gate": "Judge a candidate against the live bundle: promote, mix or wait.",
    "publish": "Push a judged bundle and move the alias, if its verdict says so.",
    "report": "Render the verdicts of all generations as one HTML page.",
}


class _Steps(TyperGroup):
    """Lists every step, imports one."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(STEPS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in STEPS:
            return None
        module = importlib.import_module(f"{__name__}.{cmd_name}")
        # A step is one command; one with commands of its own has an `app`.
        step = getattr(module, "app", None)
        if step is None:
            step = typer.Typer(**TYPER_OPTIONS)
            step.command(cmd_name, short_help=STEPS[cmd_name])(getattr(module, cmd_name))
        command = typer.main.get_command(step)
        command.name = cmd_name
        return command


app = typer.Typer(
    help="Learn from decisions and their outcomes.", no_args_is_help=True, cls=_Steps, **TYPER_OPTIONS
)


@app.callback()
def _learn() -> None:
    """Learn from decisions and their outcomes."""
