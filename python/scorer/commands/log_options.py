"""Options that the commands on a decision log share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from scorer.log import BundleShelf, ReaderKey
    from scorer.log.source.interface import DecisionSource
    from scorer.log.source.settings import SourceSettings

ReaderKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--reader-key",
        metavar="FILE",
        envvar="SCORER_READER_KEY",
        help="Private key of encrypted features (`scorer log keygen`); without it their values are missing.",
    ),
]


def log_directory(path: Path | None) -> Path:
    """Return the given directory, or that of $SCORER_LOG__DIR or ./scorer.toml."""
    from scorer.errors import LogError

    if path is None and (named := os.environ.get("SCORER_LOG__DIR")):
        path = Path(named)
    if path is None and Path("scorer.toml").exists():
        from scorer import config

        path = config.load("scorer.toml").log.dir
    if path is None:
        raise LogError("no decision log is given; set its directory with --log")
    return path


LogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        "-l",
        metavar="DIR",
        help="Decision log; repeatable, one for each server of the checkpoint. delta:DIR or delta:URL reads "
        "the tables of `scorer ship`, with all servers. Default: $SCORER_LOG__DIR, or that of ./scorer.toml.",
    ),
]


def log_source(addresses: Sequence[str] | None, settings: SourceSettings | None = None) -> DecisionSource:
    """Return the source of the given logs and tables, or of the log of $SCORER_LOG__DIR or ./scorer.toml."""
    from scorer.log.source.addresses import decision_source

    return decision_source(addresses or [log_directory(None)], settings=settings)


def bundle_shelf(places: Sequence[Path] | None) -> BundleShelf:
    """Open the bundles in these directories, by default those of the registry."""
    from scorer.log import BundleShelf

    if places:
        return BundleShelf(places)
    registry: Path | None = None
    if named := os.environ.get("SCORER_REGISTRY__PATH"):
        registry = Path(named)
    elif Path("scorer.toml").exists():
        from scorer import config

        registry = config.load("scorer.toml").registry.path
    return BundleShelf([registry] if registry is not None else [], required=False)


def reader_key(path: Path | None) -> ReaderKey | None:
    """Read the private key of encrypted features; None without a path."""
    from scorer.log import ReaderKey

    return None if path is None else ReaderKey.from_file(path)


def moment(option: str, text: str | None) -> datetime | None:
    """Parse an ISO 8601 time, which is UTC without a time zone."""
    if text is None:
        return None
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f'{option}: "{text}" is not a time; write 2026-11-01 or 2026-11-01T09:30+01:00'
        ) from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)
