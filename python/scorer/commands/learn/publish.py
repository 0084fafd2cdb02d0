"""``scorer learn publish``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from scorer.commands.output import print_json, short


def publish(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What `scorer learn gate` wrote.")],
    experience: Annotated[
        Path, typer.Option("--experience", metavar="FILE", help="The decisions that judged, checked again.")
    ],
    registry: Annotated[Path, typer.Option("--registry", "-r", metavar="DIR", help="The registry.")],
    alias: Annotated[str, typer.Option("--alias", metavar="NAME@live", help="What serves.")],
    by: Annotated[
        str | None, typer.Option("--by", help="Who does this; default: this process's user.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Push the bundle of a verdict and move the alias, if the verdict says so. Again changes nothing."""
    from scorer.learn.gate.publish import publish as do
    from scorer.registry import Registry

    done = do(directory, Registry(registry), alias, experience=experience, by=by)
    if json:
        print_json(asdict(done))
        return
    if done.decision == "wait":
        typer.echo(f"the verdict is to wait: {alias} stays where it is")
        return
    typer.echo(f"{done.alias} {'->' if done.moved else 'already points to'} {short(done.digest)}")
    if done.decision == "mix":
        lanes = " ".join(
            f"{reference.partition('@')[2]}={reference}:{share:g}" for reference, share in done.lanes
        )
        typer.echo(f"next: scorer lanes CHECKPOINT {lanes}")
