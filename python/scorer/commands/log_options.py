"""What commands on a decision log have in common: which log, which bundles, which moment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from scorer.log import BundleShelf


def log_directory(path: Path | None) -> Path:
    """The log that is named, or $SCORER_LOG__DIR, or that of ./scorer.toml."""
    from scorer.errors import LogError

    if path is None and (named := os.environ.get("SCORER_LOG__DIR")):
        path = Path(named)
    if path is None and Path("scorer.toml").exists():
        from scorer import config

        path = config.load("scorer.toml").log.dir
    if path is None:
        raise LogError("no decision log is named; give its directory with --log")
    return path


def bundle_shelf(places: Sequence[Path] | None) -> BundleShelf:
    """The bundles of these places; by default those of the registry."""
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


def moment(option: str, text: str | None) -> datetime | None:
    """A moment as ISO 8601; UTC where it does not say."""
    if text is None:
        return None
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f'{option}: "{text}" is no moment; write 2026-11-01 or 2026-11-01T09:30+01:00'
        ) from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)
