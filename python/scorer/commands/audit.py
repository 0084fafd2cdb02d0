"""``scorer audit``: read and verify the platform's audit log, directly on its database."""

from __future__ import annotations

import json as jsonlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table
from scorer.errors import ConfigError, ScorerError

if TYPE_CHECKING:
    from scorer.release.audit import Audit

app = typer.Typer(
    help="Read and verify the platform's audit log, directly on its database.",
    no_args_is_help=True,
    **TYPER_OPTIONS,
)

Config = Annotated[
    Path,
    typer.Option("--config", "-c", metavar="FILE", help="Settings of the platform, which name its database."),
]
Database = Annotated[
    str | None,
    typer.Option("--database", metavar="URL", help="Database to read instead, such as a restored backup."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

_CONFIG = Path("platform.toml")


class AuditLogError(ScorerError):
    """The audit log was modified."""


@app.command()
def verify(
    config: Config = _CONFIG,
    database: Database = None,
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect",
            metavar="SEQ:HASH",
            help="Head printed earlier by `scorer audit head`, stored elsewhere.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Verify every hash of the log. Exit code 1 if an entry was changed, removed, inserted or moved."""
    anchor = None if expect is None else _anchor(expect)
    found = _open(config, database).verify(expect=anchor)
    if json:
        print_json(
            {
                "entries": found.entries,
                "sequence": found.sequence,
                "head": found.head,
                "problems": list(found.problems),
            }
        )
    elif not found.problems:
        typer.echo(f"{found.entries} entries, all hashes are correct; head {found.sequence}:{found.head}")
    if found.problems:
        if json:
            raise typer.Exit(1)
        raise AuditLogError(
            "\n".join(
                [
                    *found.problems,
                    f"the audit log was modified ({len(found.problems)} problems); keep this database as "
                    "evidence and compare it with a backup",
                ]
            )
        )


@app.command()
def head(config: Config = _CONFIG, database: Database = None, json: Json = False) -> None:
    """Print SEQ:HASH of the newest entry. Stored elsewhere, it proves later that no entry was changed."""
    sequence, digest = _open(config, database).head()
    if json:
        print_json({"sequence": sequence, "hash": digest})
    else:
        typer.echo(f"{sequence}:{digest}")


@app.command()
def show(
    config: Config = _CONFIG,
    database: Database = None,
    project: Annotated[str | None, typer.Option("--project", help="Entries of this project.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Entries of this user.")] = None,
    action: Annotated[
        str | None,
        typer.Option(
            "--action", help="Entries of this action: change.approve, or token. for every action on tokens."
        ),
    ] = None,
    object: Annotated[  # noqa: A002 - as the entry has it
        str | None, typer.Option("--object", help="Entries about this object, for example cr-000017.")
    ] = None,
    before: Annotated[
        int | None, typer.Option("--before", help="Entries before this sequence number.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="Largest number of entries.")
    ] = 50,
    json: Json = False,
) -> None:
    """Print entries of the audit log, newest first."""
    from scorer.release.model import PLATFORM

    entries = _open(config, database).entries(
        PLATFORM, project=project, user=user, action=action, object=object, before=before, limit=limit
    )
    if json:
        print_json(
            [
                {
                    "sequence": entry.sequence,
                    "at": entry.at.isoformat(),
                    "actor": entry.actor,
                    "via": entry.via,
                    "action": entry.action,
                    "object": entry.object,
                    "project": entry.project,
                    "details": dict(entry.details),
                    "hash": entry.hash,
                }
                for entry in entries
            ]
        )
        return
    print_table(
        ("sequence", "at (UTC)", "who", "via", "action", "object", "project", "details"),
        [
            (
                str(entry.sequence),
                f"{entry.at:%Y-%m-%d %H:%M:%S}",
                entry.actor,
                entry.via,
                entry.action,
                entry.object,
                entry.project,
                jsonlib.dumps(dict(entry.details), ensure_ascii=False) if entry.details else "",
            )
            for entry in entries
        ],
        empty="no entries",
    )


def _open(config: Path, database: str | None) -> Audit:
    from scorer.release.audit import Audit
    from scorer.release.settings import PlatformFile
    from scorer.release.store import Store

    return Audit(Store(database or PlatformFile.load(config).platform.database, as_it_is=True))


def _anchor(text: str) -> tuple[int, str]:
    match = re.fullmatch(r"(\d{1,18}):([0-9a-f]{64})", text.strip())
    if match is None or int(match[1]) == 0:
        raise ConfigError(f'--expect "{text[:80]}" is not SEQ:HASH; copy the output of `scorer audit head`')
    return int(match[1]), match[2]
