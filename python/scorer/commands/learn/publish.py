"""``scorer learn publish``: publish the bundle of a verdict."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from scorer.commands.output import print_json, short


def publish(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory that `scorer learn gate` wrote.")
    ],
    experience: Annotated[
        Path,
        typer.Option(
            "--experience", metavar="FILE", help="Experience of the verdict; its digest is checked."
        ),
    ],
    registry: Annotated[
        Path, typer.Option("--registry", "-r", metavar="DIR", help="Directory of the registry.")
    ],
    alias: Annotated[str, typer.Option("--alias", metavar="NAME@live", help="Alias of the live bundle.")],
    platform: Annotated[
        str,
        typer.Option(
            "--platform",
            metavar="URL",
            help="Platform that manages the checkpoint. The command drafts a change request there and sets "
            "no alias.",
        ),
    ] = "",
    project: Annotated[str, typer.Option("--project", help="Project of the change request.")] = "",
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", help="Checkpoint of the change request.")
    ] = "action.authorise",
    by: Annotated[
        str | None,
        typer.Option("--by", help="User recorded in the history; default: the user of this process."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Push the bundle of a verdict, and set the alias unless the verdict is to wait.

    Repeating the command changes nothing.
    """
    from scorer.commands.learn.requests import requests_of
    from scorer.learn.gate.publish import publish as do
    from scorer.learn.schedule_settings import ScheduleSettings
    from scorer.registry import Registry

    settings = ScheduleSettings(platform=platform, project=project, checkpoint=checkpoint)
    with requests_of(settings) as requests:
        done = do(directory, Registry(registry), alias, experience=experience, by=by, requests=requests)
    if json:
        print_json(asdict(done))
        return
    if done.decision == "wait":
        typer.echo(f"the verdict is to wait: {alias} is not changed")
        return
    if done.requested is not None:
        asked = done.requested
        typer.echo(f"change request {asked.change or 'refused'} {asked.state}".rstrip())
        if asked.waits:
            typer.echo(f"  not submitted: {asked.waits}")
        return
    typer.echo(f"{done.alias} {'->' if done.moved else 'already points to'} {short(done.digest)}")
    if done.decision == "mix":
        lanes = " ".join(
            f"{reference.partition('@')[2]}={reference}:{share:g}" for reference, share in done.lanes
        )
        typer.echo(f"next: scorer lanes CHECKPOINT {lanes}")
