"""``scorer change``: test, release, follow and decide change requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands import permissions
from scorer.commands.output import print_json, print_table
from scorer.commands.platform_options import (
    CHANGE_COLUMNS,
    Json,
    Project,
    Reason,
    Url,
    at,
    change_row,
    connected,
    moment,
    plain,
    print_backtest,
    print_gates,
    print_outlook,
)

if TYPE_CHECKING:
    from scorer.release.model import ChangeRequest, Stage
    from scorer.sdk import PlatformClient

app = typer.Typer(
    help="Change requests: test, release, follow, decide.", no_args_is_help=True, **TYPER_OPTIONS
)

app.add_typer(permissions.app, name="permission")

Change = Annotated[str, typer.Argument(metavar="CHANGE", help="For example cr-000017.")]
Watch = Annotated[
    bool,
    typer.Option(
        "--watch/--no-watch", help="Stream progress until the change request reaches a final state."
    ),
]
Minutes = Annotated[
    float,
    typer.Option(
        "--minutes", "-n", min=0.01, max=100_000, help="Length of the observation in the shadow, in minutes."
    ),
]
Start = Annotated[
    str | None,
    typer.Option("--start", metavar="TIME", help="Start of the shadow slot; default: the next free slot."),
]

Version = Annotated[
    int | None,
    typer.Option(
        "--version",
        help="Version of the change request that you have seen; the call is rejected if it has changed.",
    ),
]


@app.command()
def test(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE_DIR", help="Directory that `scorer bundle build` wrote.")
    ],
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", "-c", help="Checkpoint whose requests the bundle observes.")
    ],
    project: Project = None,
    minutes: Minutes = 60.0,
    title: Annotated[str | None, typer.Option("--title", "-t", help="Title shown in lists.")] = None,
    sample: Annotated[
        float | None,
        typer.Option(
            "--sample", help="Share of requests to observe, above 0 to 1; default: that of the checkpoint."
        ),
    ] = None,
    watch: Watch = True,
    url: Url = None,
    json: Json = False,
) -> None:
    """Upload a bundle, book a shadow slot, observe requests and stream progress until the report is final.

    Exit codes: 0 every gate passed (or --no-watch), 1 a gate failed, 3 inconclusive.
    """
    from scorer.commands.following import follow, say

    with connected(url) as platform:
        change = platform.ship_test(
            bundle,
            checkpoint,
            project=project,
            minutes=minutes,
            title=title,
            narrate=say(quiet=json),
            sample=sample,
        )
        _end(platform, change, watch=watch, json=json, follow=follow)


@app.command()
def release(
    tested: Annotated[
        str, typer.Argument(metavar="TEST", help="Change request of the passed TEST, for example cr-000017.")
    ],
    minutes: Minutes = 60.0,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            "--stage",
            metavar="SHARE:MINUTES[:pause]",
            help="Share of the answers and minutes of a canary stage, with `:pause` if an approver ends it; "
            "repeatable. Default: the checkpoint's.",
        ),
    ] = None,
    holdout: Annotated[
        float,
        typer.Option(
            "--holdout",
            min=0,
            max=0.99,
            help="Share of the answers that the previous bundle keeps, 0 to 0.99.",
        ),
    ] = 0.0,
    title: Annotated[str | None, typer.Option("--title", "-t", help="Title shown in lists.")] = None,
    start: Start = None,
    watch: Watch = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Request the release of a tested bundle. The same digest is observed again and then approved.

    A second person approves it (`scorer change approve`). Exit codes are those of `test`; 1 also if the
    release was rolled back.
    """
    from scorer.commands.following import follow, say

    tell = say(quiet=json)
    with connected(url) as platform:
        before = platform.change(tested).change
        drafted = platform.draft(
            kind="release",
            project=before.project,
            checkpoint=before.checkpoint,
            bundle=before.bundle,
            title=title or before.title,
            minutes=minutes,
            stages=[_stage(one) for one in stage or ()],
            holdout=holdout,
        )
        tell(f"drafted {drafted.id}: RELEASE of {before.bundle_name} as tested by {before.id}")
        change = platform.submit(drafted.id, start=moment(start))
        _end(platform, change, watch=watch, json=json, follow=follow)


@app.command("list")
def list_changes(
    project: Project = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", "-c", help="Name of the checkpoint.")
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", help="State, for example booked, observing or done.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="User who drafted them.")] = None,
    reviewer: Annotated[
        str | None, typer.Option("--reviewer", help="User who was asked for a review.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            help="Part of title, id, bundle name or digest, or the description's first 300 characters.",
        ),
    ] = None,
    archived: Annotated[
        bool, typer.Option("--archived", help="List archived change requests instead.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Largest number of rows.")] = 50,
    url: Url = None,
    json: Json = False,
) -> None:
    """List change requests, newest first."""
    from itertools import islice

    with connected(url) as platform:
        every = platform.changes(
            project=project,
            checkpoint=checkpoint,
            state=state,
            user=user,
            reviewer=reviewer,
            text=text,
            archived=archived,
        )
        found = list(islice(every, limit))
    if json:
        print_json(plain(found))
    else:
        print_table(CHANGE_COLUMNS, [change_row(one) for one in found], empty="no change requests")


@app.command()
def show(change: Change, url: Url = None, json: Json = False) -> None:
    """Show a change request: state, steps, gates and the operations that you may perform now."""
    with connected(url) as platform:
        detail = platform.change(change)
    if json:
        print_json(plain(detail))
        return
    one = detail.change
    typer.echo(f"{one.id}  {one.kind.upper()}  {one.state}" + (f" ({one.verdict})" if one.verdict else ""))
    typer.echo(f"  {one.title}")
    typer.echo(f"  {one.bundle_name} {one.bundle.removeprefix('sha256:')[:12]} at {one.checkpoint}")
    typer.echo(f"  {one.project}, by {one.created_by} at {at(one.created_at)}, version {one.version}")
    if detail.booking is not None:
        booking = detail.booking
        typer.echo(f"  shadow slot {booking.slot}: {at(booking.start)} to {at(booking.end)}")
    if one.note:
        typer.echo(f"  {one.note}")
    typer.echo("")
    print_table(
        ("step", "state", "status", "details"),
        [(step.name, str(step.state), step.status, step.words) for step in detail.steps],
        empty="no steps yet",
    )
    if detail.backtest:
        print_backtest(detail.backtest)
    if detail.outlook:
        print_outlook(detail.outlook)
    if detail.gates:
        print_gates(detail.gates)
    typer.echo(f"operations allowed to you: {', '.join(detail.allowed) or 'none'}")


@app.command()
def watch(change: Change, url: Url = None, json: Json = False) -> None:
    """Stream progress until the change request is final. Exit codes: 0 passed, 1 failed, 3 inconclusive."""
    from scorer.commands.following import follow

    with connected(url) as platform:
        _end(platform, platform.change(change).change, watch=True, json=json, follow=follow)


@app.command()
def readout(
    change: Change,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File for a self-contained HTML report with every figure."
        ),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show the report: gates and summary on the terminal, or every figure as one HTML file with -o."""
    with connected(url) as platform:
        found = platform.readout(change)
    if output is not None:
        from scorer.sdk.page import render

        output.write_text(render(found), encoding="utf-8")
        typer.echo(f"{output}: report of {found.change}, {len(found.figures)} figures")
    elif json:
        print_json(plain(found))
    else:
        from scorer.commands.following import print_readout

        print_readout(found)


@app.command()
def rebook(
    change: Change,
    start: Annotated[str, typer.Option("--start", metavar="TIME", help="New start of the shadow slot.")],
    minutes: Annotated[
        float | None, typer.Option("--minutes", "-n", help="New length in minutes; default: unchanged.")
    ] = None,
    slot: Annotated[
        int | None, typer.Option("--slot", min=1, help="Number of the slot; default: unchanged.")
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Move the booking of a change request that is not deployed yet."""
    when = moment(start)
    assert when is not None  # noqa: S101 - the option is required
    _do(url, json, lambda platform: platform.rebook(change, start=when, minutes=minutes, slot=slot))


@app.command()
def finish(change: Change, url: Url = None, json: Json = False) -> None:
    """End the observation now instead of at the end of the booking."""
    _do(url, json, lambda platform: platform.finish(change))


@app.command()
def approve(
    change: Change,
    comment: Annotated[str, typer.Option("--comment", "-m", help="Comment recorded with the approval.")] = "",
    version: Version = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Approve a RELEASE whose gates passed. For approvers other than the submitter."""
    _do(url, json, lambda platform: platform.approve(change, version=version, comment=comment))


@app.command()
def reject(change: Change, reason: Reason, url: Url = None, json: Json = False) -> None:
    """Reject a change request and end it."""
    _do(url, json, lambda platform: platform.reject(change, reason=reason))


@app.command()
def waive(
    change: Change,
    metric: Annotated[
        str, typer.Argument(metavar="GATE", help="Metric of the gate, for example covered_hours_of_week.")
    ],
    reason: Reason,
    url: Url = None,
    json: Json = False,
) -> None:
    """Waive a failed gate for this change. For approvers other than the submitter; audited."""
    _do(url, json, lambda platform: platform.waive(change, metric=metric, reason=reason))


@app.command()
def withdraw(change: Change, reason: Reason, url: Url = None, json: Json = False) -> None:
    """Withdraw a change request: its lanes are removed and its slot is freed."""
    _do(url, json, lambda platform: platform.withdraw(change, reason=reason))


@app.command()
def rollback(change: Change, reason: Reason, url: Url = None, json: Json = False) -> None:
    """Restore the lanes that were active before the release."""
    _do(url, json, lambda platform: platform.rollback(change, reason=reason))


@app.command()
def pause(
    change: Change, reason: Reason, version: Version = None, url: Url = None, json: Json = False
) -> None:
    """Pause the current stage of a release. Gates are still evaluated; a failed gate rolls it back."""
    _do(url, json, lambda platform: platform.pause(change, reason=reason, version=version))


@app.command()
def resume(
    change: Change, reason: Reason, version: Version = None, url: Url = None, json: Json = False
) -> None:
    """End a pause. The stage ends when its time is over and its gates pass."""
    _do(url, json, lambda platform: platform.resume(change, reason=reason, version=version))


@app.command()
def promote(
    change: Change, reason: Reason, version: Version = None, url: Url = None, json: Json = False
) -> None:
    """End the current stage of a release now. For approvers other than the submitter."""
    _do(url, json, lambda platform: platform.promote(change, reason=reason, version=version))


@app.command()
def skip(
    change: Change,
    stage: Annotated[
        int, typer.Argument(metavar="STAGE", min=1, help="Number of a stage that has not started.")
    ],
    reason: Reason,
    version: Version = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Skip a stage of a release that has not started. For approvers other than the submitter."""
    _do(url, json, lambda platform: platform.skip(change, stage, reason=reason, version=version))


@app.command()
def comment(
    change: Change,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Plain text, up to 2000 characters.")],
    url: Url = None,
    json: Json = False,
) -> None:
    """Append a comment. The project's channels are notified; comments are not edited or removed."""
    _do(url, json, lambda platform: platform.comment(change, text))


@app.command("request-review")
def request_review(
    change: Change,
    reviewers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="USER...",
            help="Users to review it, who are approvers; without any, the request is withdrawn.",
        ),
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Ask approvers for a review and notify the project's channels."""
    _do(url, json, lambda platform: platform.request_review(change, reviewers or []))


@app.command()
def archive(
    change: Change,
    undo: Annotated[bool, typer.Option("--undo", help="Unarchive it, so that lists show it again.")] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Hide an ended change request from lists. Nothing is deleted."""
    _do(url, json, lambda platform: platform.unarchive(change) if undo else platform.archive(change))


def _do(url: str | None, json: bool, action: Callable[[PlatformClient], ChangeRequest]) -> None:
    with connected(url) as platform:
        change = action(platform)
    if json:
        print_json(plain(change))
    else:
        typer.echo(f"{change.id} is {change.state}" + (f": {change.note}" if change.note else ""))


def _end(
    platform: PlatformClient, change: ChangeRequest, *, watch: bool, json: bool, follow: Callable[..., Any]
) -> None:
    """Follow the change request if requested, and exit with the verdict's code."""
    if not watch:
        if json:
            print_json(plain(change))
        else:
            typer.echo(f"{change.id} is {change.state}; follow it with `scorer change watch {change.id}`")
        return
    raise typer.Exit(follow(platform, change.id, json=json))


def _stage(text: str) -> Stage:
    from scorer.release.model import Stage

    share, _, rest = text.partition(":")
    minutes, _, last = rest.partition(":")
    try:
        stage = Stage(float(share), float(minutes), last == "pause")
    except ValueError:
        stage = Stage(0, 0)
    if last not in ("", "pause") or not 0 < stage.share < 1 or not stage.minutes > 0:
        raise typer.BadParameter(
            f'"{text}" is not a stage; write SHARE:MINUTES, for example 0.05:15, or SHARE:MINUTES:pause'
        )
    return stage
