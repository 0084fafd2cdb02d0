"""``scorer backup`` and ``scorer restore``: registry, decision log and platform, one command each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.commands.output import print_json, size

if TYPE_CHECKING:
    from scorer.backup import BackupManifest

Registry = Annotated[
    Path | None,
    typer.Option(
        "--registry", "-r", metavar="DIR", help="Directory of the registry; default: that of --config."
    ),
]
Log = Annotated[
    Path | None,
    typer.Option(
        "--log", "-l", metavar="DIR", help="Directory of the decision log; default: that of --config."
    ),
]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings of a server (scorer.toml).")
]
Platform = Annotated[
    Path | None,
    typer.Option("--platform", metavar="FILE", help="Settings of a platform (platform.toml) with SQLite."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def backup(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of the backup; must not exist.")
    ],
    config: Config = None,
    registry: Registry = None,
    log: Log = None,
    platform: Platform = None,
    json: Json = False,
) -> None:
    """Back up a registry, a decision log and a platform while they are in use."""
    from scorer.backup import Sources, back_up

    registry, log = _places(config, registry, log, explicit=platform is not None)
    done = back_up(Sources(registry, log, _platform(platform)), directory)
    _report(done, f"to {directory}", json)


def restore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory that `scorer backup` wrote.")],
    config: Config = None,
    registry: Registry = None,
    log: Log = None,
    platform: Platform = None,
    json: Json = False,
) -> None:
    """Verify a backup and restore it to empty directories. The servers must be stopped."""
    from scorer.backup import Targets
    from scorer.backup import restore as restore_backup

    registry, log = _places(config, registry, log, explicit=platform is not None)
    done = restore_backup(directory, Targets(registry, log, _platform(platform)))
    _report(done, f"from {directory}", json)


def _places(
    config: Path | None, registry: Path | None, log: Path | None, *, explicit: bool
) -> tuple[Path | None, Path | None]:
    """Return the given directories or, without any, those of the settings file."""
    if config is None and (registry or log or explicit):
        return registry, log
    from scorer import config as settings_module

    settings = settings_module.load(config or Path("scorer.toml"))
    local = None if settings.registry.url else settings.registry.path
    return registry or local, log or settings.log.dir


def _platform(settings: Path | None) -> tuple[Path, Path] | None:
    if settings is None:
        return None
    from scorer.errors import BackupError
    from scorer.release.settings import PlatformFile

    own = PlatformFile.load(settings).platform
    scheme, _, path = own.database.partition(":///")
    if scheme != "sqlite":
        raise BackupError(
            "the platform's database is PostgreSQL; back it up with pg_dump, and omit --platform"
        )
    return Path(path), own.data_dir


def _report(done: BackupManifest, where: str, json: bool) -> None:
    facts: dict[str, Any] = {name: part.facts for name, part in done.parts.items()}
    if json:
        print_json({"created_at": done.created_at, "bytes": done.bytes, "parts": facts})
        return
    typer.echo(f"{size(done.bytes)} of {done.created_at}, {where}")
    for name, found in facts.items():
        typer.echo(f"{name}: " + ", ".join(f"{key} {value}" for key, value in found.items() if value))
