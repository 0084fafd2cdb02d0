"""``scorer learn run``: run the steps of a generation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scorer.commands.log_options import moment
from scorer.commands.output import print_json


def run(
    workspace: Annotated[
        Path, typer.Argument(metavar="WORKSPACE", help="Directory of the loop; created if needed.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="Settings file (learn.toml); default: all defaults."
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            help="Run one step: join, train, evaluate, gate, publish or overlay; or drift: all steps, which "
            "end in a TEST, if there is a new alert. Default: all but overlay and drift."
        ),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            help="Time that identifies the generation, such as 2026-11-02T03:00; UTC without an offset. "
            "Default: that of the unfinished generation, or the current time."
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Seconds to wait for another run in the workspace to end."
        ),
    ] = 0.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Join, train, evaluate, gate and publish one generation. Completed steps are not repeated.

    A run that was killed continues at the interrupted step when it is started again, so cron, a systemd timer
    or a Kubernetes CronJob can call this command. A workspace allows one run at a time.
    """
    from scorer.commands.learn.requests import requests_of
    from scorer.learn import settings
    from scorer.learn.schedule.drift import run_drift
    from scorer.learn.schedule.generation import run_generation
    from scorer.learn.schedule.overlay import run_overlay
    from scorer.learn.schedule.workspace import Workspace
    from scorer.learn.tracking import Tracking

    given = moment("--as-of", as_of)
    at = None if given is None else round(given.timestamp() * 1000)
    chosen = settings.load(config)
    base = Path.cwd() if config is None else config.resolve().parent
    tracking = Tracking(chosen.tracking)
    with requests_of(chosen.schedule) as requests:
        if step == "overlay":
            done = run_overlay(Workspace(workspace), chosen, base, as_of_ms=at, requests=requests)
        elif step == "drift":
            done = run_drift(Workspace(workspace), chosen, base, requests=requests)
        else:
            done = run_generation(
                Workspace(workspace),
                chosen,
                base,
                step=step,
                as_of_ms=at,
                wait_seconds=wait,
                requests=requests,
            )
    warnings = tracking.steps(done)
    if json:
        print_json(
            {
                "folder": str(done.folder),
                "steps": [
                    {"step": s.step, "state": s.state, "seconds": s.seconds, **s.says} for s in done.steps
                ],
                "warnings": warnings,
            }
        )
        return
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    for one in done.steps:
        said = ", ".join(f"{key} {_shown(value)}" for key, value in one.says.items())
        typer.echo(f"{done.folder.name} {one.step}: {one.state}, {one.seconds:.1f} s: {said}")


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
