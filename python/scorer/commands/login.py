"""``scorer login`` and ``scorer logout``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the platform.")],
) -> None:
    """Check a token and store it for the other commands, readable only by you.

    The command prompts for the token, or reads it from standard input.
    """
    from scorer.release.errors import NotAuthenticatedError
    from scorer.sdk import PlatformClient, credentials

    asked = typer.prompt("token", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    token = str(asked).strip()
    if not token:
        raise NotAuthenticatedError("no token was given; create one on the platform's page Tokens")
    url = credentials.check_url(url)
    with PlatformClient(url, token) as platform:
        actor = platform.me()
    file = credentials.keep(credentials.Credentials(url, token))
    roles = ", ".join(f"{role} in {project}" for project, role in sorted(actor.roles.items()))
    typer.echo(f"{actor.user} at {url}: {'admin' if actor.admin else roles or 'no project yet'}")
    typer.echo(f"token stored in {file}")


def logout() -> None:
    """Delete the stored token. It stays valid until it is revoked."""
    from scorer.sdk import credentials

    typer.echo("token deleted" if credentials.forget() else "no token was stored")
