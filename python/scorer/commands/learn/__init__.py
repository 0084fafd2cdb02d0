"""``scorer learn``: train, evaluate and publish bundles from logged decisions and outcomes."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

from scorer.cli import TYPER_OPTIONS

# Help of each step by the name of its module in this package. The step's function has the same name.
STEPS: dict[str, str] = {
    "join": "Join decisions with their outcomes, as known at a moment.",
    "label": "Write the training table of a score checkpoint, with labels by the policy.",
    "train": "Train the next generation and build its bundle.",
    "fraud": "Train, rebuild, tune and compare bundles of score checkpoints from labelled decisions.",
    "evaluate": "Estimate what a bundle would have earned on logged decisions.",
    "overlay": "Fit offsets to the live oracle on decisions after its training.",
    "run": "Run the steps of a generation: join, train, evaluate, gate, publish.",
    "schedule": "Run the scheduled jobs at their times.",
    "ab": "Compare lanes by the outcomes of their decisions.",
    "config": "Print a commented learn.toml, or check one.",
    "guardrails": "Check logged decisions against the guardrails; solve and control the prices of caps.",
    "gate": "Evaluate the gate of a candidate against the live bundle: promote, mix or wait.",
    "publish": "Push the bundle of a verdict, and set the alias if the verdict is to promote or mix.",
    "report": "Render the verdicts of all generations as one HTML page.",
}


class _Steps(TyperGroup):
    """Lists all steps, and imports the module of a step when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(STEPS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in STEPS:
            return None
        module = importlib.import_module(f"{__name__}.{cmd_name}")
        # A step is one command. A module with several commands has an `app`.
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
