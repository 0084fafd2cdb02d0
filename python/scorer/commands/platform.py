"""``scorer platform``: the platform's process, and administration directly on its database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table
from scorer.commands.settings_file import SettingsArgument

if TYPE_CHECKING:
    from scorer.release.access import Access
    from scorer.release.model import Actor, Role

app = typer.Typer(
    help="Run the platform, and administer its database.", no_args_is_help=True, **TYPER_OPTIONS
)
token = typer.Typer(help="Manage tokens, directly on the database.", no_args_is_help=True, **TYPER_OPTIONS)
project = typer.Typer(
    help="Manage projects and members, directly on the database.", no_args_is_help=True, **TYPER_OPTIONS
)
user = typer.Typer(help="Manage users, directly on the database.", no_args_is_help=True, **TYPER_OPTIONS)
app.add_typer(user, name="user")
app.add_typer(token, name="token")
app.add_typer(project, name="project")

Config = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Settings file of the platform.",
        envvar="SCORER_PLATFORM_CONFIG",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_DEFAULT = Path("platform.toml")


@app.command()
def serve(
    config: Config = _DEFAULT,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            "--ready-file", metavar="FILE", help="File that receives the URL when the platform is ready."
        ),
    ] = None,
) -> None:
    """Serve pages and REST, and advance change requests, until SIGTERM or SIGINT.

    Writes one JSON event per line to stderr. Exit codes: 0 stopped cleanly, 1 failed, 64 bad settings.
    """
    from scorer.web.server import run

    raise typer.Exit(run(config, ready_file=ready_file))


@app.command()
def init(
    config: Config = _DEFAULT,
    user: Annotated[str, typer.Option("--user", "-u", help="Name of the first admin.")] = "admin",
    force: Annotated[
        bool, typer.Option("--force-new-token", help="Create another token for an admin whose token is lost.")
    ] = False,
    json: Json = False,
) -> None:
    """Create the database, the first admin and a token, which is shown only this time."""
    with _access(config) as (access, _):
        made, secret = access.bootstrap(user, force_new_token=force)
    if json:
        print_json({"user": made.user, "token": made.id, "secret": secret})
        return
    typer.echo(f"admin {made.user}, token (shown only this time): {secret}")
    typer.echo("next: scorer platform serve; then sign in with it, or `scorer login URL`")


@app.command("config")
def config_(
    file: SettingsArgument = None,
) -> None:
    """Print a complete, commented platform.toml, or check one. Exit code 64 if it is not valid."""
    from scorer.release.settings import PlatformFile, example

    if file is None:
        typer.echo(example(), nl=False)
        return
    settings = PlatformFile.load(file)
    typer.echo(f"{file}: ok")
    for name, checkpoint in settings.checkpoints.items():
        stages = ", ".join(f"{stage.share:.0%} for {stage.minutes:g} min" for stage in checkpoint.stages)
        typer.echo(
            f"  {name}: alias {checkpoint.alias}, SLA p99 {checkpoint.p99_ms:g} ms, "
            f"{checkpoint.slots} shadow "
            f"slots, sample {checkpoint.sample:g}; canary {stages or 'none'}"
        )


@app.command()
def migrate(config: Config = _DEFAULT) -> None:
    """Migrate the database to this version. `serve` does the same. Back up the database first."""
    from scorer.release.settings import PlatformFile
    from scorer.release.store import Store

    store = Store(PlatformFile.load(config).platform.database)
    typer.echo(f"{store.name}: current")
    store.close()


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to create; it must not exist.")],
    config: Config = _DEFAULT,
) -> None:
    """Copy the SQLite database while the platform runs. For PostgreSQL, use pg_dump."""
    from scorer.release.audit import Audit
    from scorer.release.settings import PlatformFile
    from scorer.release.store import Store

    store = Store(PlatformFile.load(config).platform.database)
    try:
        store.backup(file)
    finally:
        store.close()
    copy = Store(f"sqlite:///{file.absolute()}")
    try:
        sequence, digest = Audit(copy).head()
    finally:
        copy.close()
    typer.echo(f"{file}: audit head {sequence}:{digest}")


# --- users ---


@user.command("add")
def add_user(
    name: str,
    admin: Annotated[bool, typer.Option("--admin", help="Make the user an admin.")] = False,
    config: Config = _DEFAULT,
) -> None:
    """Add a user, or restore one that was removed. Adding an existing user changes nothing."""
    with _access(config) as (access, actor):
        made = access.add_user(actor, name, admin=admin)
    typer.echo(f"user {made.name}" + (", admin" if made.admin else ""))


@user.command("remove")
def remove_user(name: str, config: Config = _DEFAULT) -> None:
    """Remove a user; the user's tokens, sessions and memberships end immediately."""
    with _access(config) as (access, actor):
        access.remove_user(actor, name)
    typer.echo(f"{name} is removed")


@user.command("list")
def list_users(config: Config = _DEFAULT, json: Json = False) -> None:
    """List the users of the platform."""
    with _access(config) as (access, actor):
        found = access.users(actor)
    if json:
        print_json([asdict(one) for one in found])
        return
    rows = [(one.name, "admin" if one.admin else "-", "removed" if one.removed else "-") for one in found]
    print_table(
        ("user", "admin", "state"), rows, empty="no users; `scorer platform init` creates the first admin"
    )


# --- tokens ---


@token.command("create")
def create_token(
    user: Annotated[str, typer.Option("--user", "-u", help="User that the token belongs to.")],
    label: Annotated[str, typer.Option("--label", "-l", help="Label that names where the token is used.")],
    role: Annotated[str, typer.Option("--role", help="Highest role that the token grants.")] = "modeler",
    project: Annotated[
        str | None, typer.Option("--project", "-p", help="Project that the token is valid for; default: all.")
    ] = None,
    days: Annotated[
        float | None, typer.Option("--days", help="Days until the token expires; default: never.")
    ] = None,
    config: Config = _DEFAULT,
    json: Json = False,
) -> None:
    """Create a token; its secret is shown only this time."""
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    with _access(config) as (access, actor):
        made, secret = access.create_token(
            actor,
            user=user,
            label=label,
            project=project,
            role=_role(role),
            expires_at=expires_at,
        )
    if json:
        print_json({**asdict(made), "secret": secret})
    else:
        typer.echo(secret)


@token.command("list")
def list_tokens(config: Config = _DEFAULT, json: Json = False) -> None:
    """List tokens, without their secrets."""
    with _access(config) as (access, actor):
        found = access.tokens(actor)
    if json:
        print_json([asdict(one) for one in found])
        return
    rows = [
        (
            one.id,
            one.user,
            one.role,
            one.project or "all",
            one.label,
            "revoked" if one.revoked else f"until {one.expires_at:%Y-%m-%d}" if one.expires_at else "valid",
            f"{one.last_used_at:%Y-%m-%d %H:%M}" if one.last_used_at else "never",
        )
        for one in found
    ]
    print_table(("id", "user", "role", "project", "label", "state", "used"), rows, empty="no tokens")


@token.command("revoke")
def revoke_token(identity: Annotated[str, typer.Argument(metavar="ID")], config: Config = _DEFAULT) -> None:
    """Revoke a token; its sessions end immediately."""
    with _access(config) as (access, actor):
        access.revoke_token(actor, identity)
    typer.echo(f"{identity} is revoked")


# --- projects ---


@project.command("create")
def create_project(
    name: str,
    title: Annotated[
        str, typer.Option("--title", "-t", help="Title shown on pages; default: the name.")
    ] = "",
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--checkpoint", help="Checkpoint that the project may change, repeatable; default: all."
        ),
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="First owner of the project.")] = None,
    config: Config = _DEFAULT,
) -> None:
    """Create a project with its checkpoints."""
    with _access(config) as (access, actor):
        made = access.create_project(actor, name, title or name, checkpoints=checkpoint or ())
        if owner is not None:
            access.add_user(actor, owner)
            access.set_member(actor, name, owner, _role("owner"))
    typer.echo(f"project {made.name}" + (f", owner {owner}" if owner else ""))


@project.command("list")
def list_projects(config: Config = _DEFAULT, json: Json = False) -> None:
    """List projects with their quotas."""
    with _access(config) as (access, actor):
        found = access.projects(actor)
    if json:
        print_json([asdict(one) for one in found])
        return
    rows = [
        (
            one.name,
            one.title,
            " ".join(one.checkpoints) or "all",
            str(one.quotas.open_changes),
            str(one.quotas.slot_minutes_per_week),
            str(one.quotas.bundles),
        )
        for one in found
    ]
    columns = ("name", "title", "checkpoints", "open changes", "slot minutes per week", "bundles")
    print_table(columns, rows, empty="no projects; create one with `scorer platform project create NAME`")


@project.command("set")
def set_project(
    name: str,
    title: Annotated[str | None, typer.Option("--title", "-t", help="Title shown on pages.")] = None,
    open_changes: Annotated[
        int | None, typer.Option("--open-changes", min=0, help="Limit on open change requests.")
    ] = None,
    slot_minutes: Annotated[
        int | None, typer.Option("--slot-minutes-per-week", min=0, help="Limit on booked minutes per week.")
    ] = None,
    bundles: Annotated[int | None, typer.Option("--bundles", min=0, help="Limit on stored bundles.")] = None,
    config: Config = _DEFAULT,
) -> None:
    """Change a project's title or quotas."""
    from dataclasses import replace

    wanted = {"open_changes": open_changes, "slot_minutes_per_week": slot_minutes, "bundles": bundles}
    with _access(config) as (access, actor):
        quotas = replace(
            access.project(actor, name).quotas,
            **{key: value for key, value in wanted.items() if value is not None},
        )
        access.update_project(actor, name, title=title, quotas=quotas)
    typer.echo(f"project {name} is changed")


@project.command("member")
def set_member(
    name: str,
    user: str,
    role: Annotated[
        str, typer.Argument(help="viewer, agent, modeler, approver, owner; none: remove the member.")
    ],
    config: Config = _DEFAULT,
) -> None:
    """Add a member to a project, change the member's role, or remove the member."""
    with _access(config) as (access, actor):
        wanted = None if role == "none" else _role(role)
        if wanted is not None:
            access.add_user(actor, user)
        access.set_member(actor, name, user, wanted)
    typer.echo(f"{user} is {role} in {name}")


@project.command("members")
def list_members(name: str, config: Config = _DEFAULT, json: Json = False) -> None:
    """List the members of a project."""
    with _access(config) as (access, actor):
        found = access.members(actor, name)
    if json:
        print_json([asdict(one) for one in found])
    else:
        print_table(("user", "role"), [(one.user, one.role) for one in found], empty="no members")


@contextmanager
def _access(config: Path) -> Iterator[tuple[Access, Actor]]:
    """Open access control on the settings' database, as the user of this process."""
    from scorer.registry.pushing import user as user_of_process
    from scorer.release.access import Access
    from scorer.release.settings import PlatformFile
    from scorer.release.store import Store

    settings = PlatformFile.load(config)
    store = Store(settings.platform.database)
    try:
        access = Access(store, session_hours=settings.platform.session_hours)
        yield access, access.local(user_of_process())
    finally:
        store.close()


def _role(value: str) -> Role:
    from scorer.release.model import Role

    try:
        return Role(value)
    except ValueError:
        raise typer.BadParameter(f'"{value}" is not one of {", ".join(Role)}') from None
