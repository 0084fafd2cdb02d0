"""``scorer calendar``: bookings, free slots and freezes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table
from scorer.commands.platform_options import Json, Url, at, connected, moment, plain

app = typer.Typer(help="Calendar of bookings, free slots and freezes.", no_args_is_help=True, **TYPER_OPTIONS)
freeze = typer.Typer(help="Freezes: time windows without changes.", no_args_is_help=True, **TYPER_OPTIONS)
app.add_typer(freeze, name="freeze")


@app.command()
def show(
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", "-c", help="Name of the checkpoint; default: all.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--start", metavar="TIME", help="Start of the period; default: now.")
    ] = None,
    days: Annotated[
        float, typer.Option("--days", min=0.01, max=366, help="Length of the period in days.")
    ] = 7.0,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show the bookings and freezes of a period."""
    begin = moment(start) or datetime.now(UTC)
    with connected(url) as platform:
        page = platform.calendar(begin, begin + timedelta(days=days), checkpoint=checkpoint)
    if json:
        print_json(plain(page))
        return
    rows = [
        (
            at(one.start),
            at(one.end),
            f"{one.checkpoint} slot {one.slot}",
            one.kind.upper(),
            one.change,
            one.user,
        )
        for one in page.bookings
    ]
    rows += [
        (
            at(one.start),
            at(one.end),
            " ".join(one.freeze.checkpoints),
            one.freeze.kind,
            one.freeze.name,
            "freeze",
        )
        for one in page.windows
    ]
    rows.sort()
    print_table(("from", "to", "where", "kind", "what", "who"), rows, empty="no bookings and no freezes")


@app.command("next-free")
def next_free(
    checkpoint: str,
    minutes: Annotated[
        float, typer.Option("--minutes", "-n", min=0.01, help="Length of the booking in minutes.")
    ] = 60.0,
    after: Annotated[
        str | None, typer.Option("--after", metavar="TIME", help="Earliest start; default: now.")
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Print the earliest slot that is free for the given duration, outside freezes."""
    with connected(url) as platform:
        free = platform.next_free(checkpoint, minutes=minutes, after=moment(after))
    if json:
        print_json(plain(free))
    else:
        typer.echo(f"{free.checkpoint} slot {free.slot}: {at(free.start)} to {at(free.end)}")


@freeze.command("add")
def add_freeze(
    name: str,
    cron: Annotated[
        str,
        typer.Option("--cron", help='Start of each window as cron fields: "0 18 * * 5" is Friday at 18:00.'),
    ],
    minutes: Annotated[int, typer.Option("--minutes", "-n", min=1, help="Length of each window in minutes.")],
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            help="deny: no changes in the windows; allow: changes only in the windows. deny has precedence.",
        ),
    ] = "deny",
    timezone: Annotated[str, typer.Option("--timezone", help="Time zone of the cron fields.")] = "UTC",
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--checkpoint", "-c", help="Shell-style pattern of checkpoint names, repeatable; default: all."
        ),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", "-m", help="Reason shown to users.")] = "",
    url: Url = None,
    json: Json = False,
) -> None:
    """Add a freeze. For admins."""
    with connected(url) as platform:
        made = platform.add_freeze(
            name,
            cron=cron,
            minutes=minutes,
            kind=kind,
            timezone=timezone,
            checkpoints=checkpoint or ["*"],
            reason=reason,
        )
    if json:
        print_json(plain(made))
    else:
        typer.echo(
            f"freeze {made.id} ({made.name}): {made.kind} at {made.cron} {made.timezone}, {made.minutes} min"
        )


@freeze.command("list")
def list_freezes(url: Url = None, json: Json = False) -> None:
    """List all freezes with their windows."""
    with connected(url) as platform:
        found = platform.freezes()
    if json:
        print_json(plain(found))
        return
    rows = [
        (
            str(one.id),
            one.name,
            one.kind,
            f"{one.cron} {one.timezone}",
            f"{one.minutes} min",
            " ".join(one.checkpoints),
        )
        for one in found
    ]
    print_table(("id", "name", "kind", "start", "duration", "checkpoints"), rows, empty="no freezes")


@freeze.command("remove")
def remove_freeze(identity: Annotated[int, typer.Argument(metavar="ID")], url: Url = None) -> None:
    """Remove a freeze. For admins."""
    with connected(url) as platform:
        platform.remove_freeze(identity)
    typer.echo(f"freeze {identity} is removed")
