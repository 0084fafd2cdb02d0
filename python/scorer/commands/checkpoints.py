"""``scorer checkpoints``: lanes, sampling, lane table history, rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table, short
from scorer.commands.platform_options import Json, Reason, Url, at, connected, plain

if TYPE_CHECKING:
    from scorer.release.model import LaneSpec

app = typer.Typer(help="Checkpoints that the platform manages, with their lanes.", **TYPER_OPTIONS)

Checkpoint = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="For example fraud.checkout.")]


@app.callback(invoke_without_command=True)
def overview(context: typer.Context, url: Url = None, json: Json = False) -> None:
    """List checkpoints, or run one of the commands below."""
    if context.invoked_subcommand is not None:
        return
    with connected(url) as platform:
        found = platform.checkpoints()
    if json:
        print_json(plain(found))
        return
    rows = [
        (
            one.name,
            one.kind,
            _lanes(one.recorded.answer) if one.recorded else "-",
            _lanes(one.recorded.observe) if one.recorded else "-",
            f"{one.sample:g}",
            " ".join(f"{member.name}{'' if member.in_step else '!'}" for member in one.members),
        )
        for one in found
    ]
    columns = ("checkpoint", "kind", "answers", "observes", "sample", "servers (! out of sync)")
    print_table(columns, rows, empty="no checkpoints")


@app.command()
def show(checkpoint: Checkpoint, url: Url = None, json: Json = False) -> None:
    """Show a checkpoint: its recorded lanes, and those that every server reports."""
    with connected(url) as platform:
        one = platform.checkpoint(checkpoint)
    if json:
        print_json(plain(one))
        return
    typer.echo(f"{one.name}: {one.kind}, alias {one.alias}, SLA p99 {one.p99_ms:g} ms")
    typer.echo(
        f"  shadow: {one.slots} slots, sample {one.sample:g}"
        + (f", filter {one.filter}" if one.filter else "")
        + (", in the pool" if one.pool else "")
    )
    if one.recorded is not None:
        made = one.recorded
        typer.echo(f"  lane table {made.revision} since {at(made.at)} by {made.actor} ({made.cause})")
    rows = [
        (
            member.name,
            member.role,
            ("in sync" if member.in_step else "OUT OF SYNC")
            if member.reachable
            else f"not reachable: {member.error}",
            _lanes(member.answer),
            _lanes(member.observe),
        )
        for member in one.members
    ]
    print_table(
        ("server", "role", "state", "answers", "observes"), rows, empty="no server has this checkpoint"
    )


@app.command()
def sampling(
    checkpoint: Checkpoint,
    sample: Annotated[
        float,
        typer.Argument(metavar="SHARE", help="Share of requests to observe, above 0 and at most 1."),
    ],
    filter: Annotated[  # noqa: A002 - as lanes have it
        str, typer.Option("--filter", help="JSON list of conditions on features; default: every request.")
    ] = "",
    pool: Annotated[
        bool | None,
        typer.Option(
            "--pool/--no-pool", help="Evaluate in the shadow pool or in the live servers; default: unchanged."
        ),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Set which requests the observe lanes receive. For owners."""
    with connected(url) as platform:
        one = platform.set_sampling(checkpoint, sample=sample, filter=filter, pool=pool)
    if json:
        print_json(plain(one))
    else:
        typer.echo(f"{one.name}: sample {one.sample:g}" + (f", filter {one.filter}" if one.filter else ""))


@app.command()
def history(
    checkpoint: Checkpoint,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="Largest number of lane tables.")
    ] = 20,
    url: Url = None,
    json: Json = False,
) -> None:
    """List the recorded lane tables of a checkpoint, newest first."""
    with connected(url) as platform:
        found = platform.tables(checkpoint, limit=limit)
    if json:
        print_json(plain(found))
        return
    rows = [
        (str(t.revision), at(t.at), t.actor, t.cause, t.change or "-", _lanes(t.answer), _lanes(t.observe))
        for t in found
    ]
    columns = ("table", "since", "by", "cause", "change", "answers", "observes")
    print_table(columns, rows, empty="no lane table is recorded yet")


@app.command()
def versions(
    checkpoint: Checkpoint,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            help="Order: name, place, uploaded, live, p99, metrics.NAME, ...; with a leading - descending.",
        ),
    ] = "-first",
    place: Annotated[
        str | None,
        typer.Option(
            "--place",
            help="Place of the versions: live, canary, holdout, shadow, submitted, tested or retired.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Largest number of versions.")] = 50,
    url: Url = None,
    json: Json = False,
) -> None:
    """List every bundle that was submitted, tested, released or live at a checkpoint."""
    with connected(url) as platform:
        found = platform.versions(checkpoint, sort=sort, place=place, limit=limit)
    if json:
        print_json(plain(found))
        return
    metrics = found.metrics[:2]
    rows = [
        (
            f"{one.bundle.name} {short(one.bundle.digest)}",
            f"{one.place}" + (f" {one.share:.4g}" if one.share else ""),
            at(one.bundle.uploaded_at) if one.bundle.uploaded_at else "-",
            one.bundle.uploaded_by or "-",
            f"{one.live_seconds / 3600:.1f} h" if one.live_since else "never",
            " ".join(each.id for each in one.changes) or "-",
            str(one.verdict or "-"),
            *(f"{one.metrics[name]:.4g}" if name in one.metrics else "-" for name in metrics),
            f"{one.rows:,}" if one.rows is not None else "-",
            f"{one.p99_us / 1000:.3g} ms" if one.p99_us is not None else "-",
        )
        for one in found.items
    ]
    columns = (
        "version",
        "place",
        "uploaded",
        "by",
        "live for",
        "changes",
        "verdict",
        *metrics,
        "rows",
        "p99",
    )
    print_table(columns, rows, empty="no version matches")
    if found.next is not None:
        typer.echo(f"{len(found.items)} of {found.total} versions; raise --limit to list more")
    if found.hidden:
        typer.echo(f"{found.hidden} more belong to projects that you are not a member of")


@app.command()
def rollback(checkpoint: Checkpoint, reason: Reason, url: Url = None, json: Json = False) -> None:
    """Restore the previous answer lanes on every server."""
    with connected(url) as platform:
        table = platform.rollback_checkpoint(checkpoint, reason=reason)
    if json:
        print_json(plain(table))
    else:
        typer.echo(f"{checkpoint}: table {table.revision}, answer lanes {_lanes(table.answer)}")


def _lanes(lanes: tuple[LaneSpec, ...]) -> str:
    return (
        ", ".join(
            f"{lane.name} {short(lane.bundle)} "
            + (f"{lane.share:.4g}" if lane.mode == "answer" else f"of {lane.sample:.4g}{' pool' * lane.pool}")
            for lane in lanes
        )
        or "-"
    )
