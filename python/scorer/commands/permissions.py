"""``scorer change permission``: standing permissions of learning loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table
from scorer.commands.platform_options import Json, Reason, Url, connected, plain

if TYPE_CHECKING:
    from scorer.release.model import StandingPermission

app = typer.Typer(
    help="Standing permissions, by which a learning loop submits changes without a person's approval.",
    no_args_is_help=True,
    **TYPER_OPTIONS,
)

ProjectName = Annotated[str, typer.Argument(metavar="PROJECT", help="Name of the project.")]


@app.command("list")
def list_(project: ProjectName, url: Url = None, json: Json = False) -> None:
    """List the standing permissions of a project, newest first."""
    with connected(url) as platform:
        _print(platform.permissions(project), json=json)


@app.command()
def grant(
    project: ProjectName,
    user: Annotated[str, typer.Option("--user", help="Modeler of the project who may submit changes.")],
    checkpoint: Annotated[str, typer.Option("--checkpoint", "-c", help="Name of the checkpoint.")],
    kind: Annotated[str, typer.Option("--kind", help="Kind of the changes: overlay, test or release.")],
    days: Annotated[float, typer.Option("--days", help="Days until the permission expires, at most 366.")],
    reason: Reason,
    per_hour: Annotated[
        int, typer.Option("--per-hour", help="Changes that may be submitted within an hour, 1 to 60.")
    ] = 12,
    max_shift: Annotated[
        float,
        typer.Option("--max-shift", help="Largest offset that an overlay may give an action, in log-odds."),
    ] = 1.0,
    url: Url = None,
    json: Json = False,
) -> None:
    """Permit a user to submit changes of one kind at one checkpoint. For owners; audited."""
    with connected(url) as platform:
        made = platform.grant_permission(
            project,
            kind=kind,
            checkpoint=checkpoint,
            user=user,
            days=days,
            reason=reason,
            per_hour=per_hour,
            max_shift=max_shift,
        )
        _print([made], json=json)


@app.command()
def revoke(
    permission: Annotated[str, typer.Argument(metavar="PERMISSION", help="For example sp_2f6b0c1d9e8a7b65.")],
    reason: Reason,
    url: Url = None,
    json: Json = False,
) -> None:
    """Revoke a standing permission. For owners; audited."""
    with connected(url) as platform:
        _print([platform.revoke_permission(permission, reason=reason)], json=json)


def _print(found: list[StandingPermission], *, json: bool) -> None:
    if json:
        print_json(plain(found))
        return
    print_table(
        ("permission", "kind", "checkpoint", "user", "per hour", "max shift", "granted by", "expires"),
        [
            (
                each.id,
                str(each.kind),
                each.checkpoint,
                each.user,
                str(each.per_hour),
                f"{each.max_shift:g}",
                each.granted_by,
                f"revoked by {each.revoked_by}" if each.revoked_by else f"{each.expires_at:%Y-%m-%d %H:%M}",
            )
            for each in found
        ],
        empty="no standing permissions",
    )
