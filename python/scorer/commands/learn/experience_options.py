"""Options of commands that read an experience: a file of `scorer learn join`, or logs joined as of now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.commands.log_options import log_source

if TYPE_CHECKING:
    from scorer.learn.experience import Experience
    from scorer.learn.settings import LearnSettings
    from scorer.log import BundleShelf

ExperienceFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="[EXPERIENCE]",
        help="Parquet file that `scorer learn join` wrote; without it the logs are joined as of now.",
    ),
]

BundlePlaces = Annotated[
    list[Path] | None,
    typer.Option(
        "--bundles",
        "--registry",
        "-b",
        metavar="DIR",
        help="Bundles, directories of bundles or registries; repeatable. Default: the registry.",
    ),
]

Checkpoint = Annotated[
    str | None,
    typer.Option(help="Checkpoint of the decisions in the logs; default: the only one that chooses actions."),
]


def read_experience(
    file: Path | None,
    logs: Sequence[str] | None,
    shelf: BundleShelf,
    settings: LearnSettings,
    *,
    checkpoint: str | None,
    cache: Path | None = None,
) -> Experience:
    """Read a file of `scorer learn join`, or join logs as of now.

    Args:
        file: The file.
        logs: The logs and tables; None: the log of the environment or of ./scorer.toml.
        shelf: The bundles of the decisions.
        settings: `learn.toml`.
        checkpoint: Checkpoint of the decisions.
        cache: Directory in which the join stores what it has read.

    Raises:
        typer.BadParameter: There are both a file and logs, or there is a cache and no checkpoint.
        DataError: The file cannot be read, or no decision can be used.
        LogError: No log can be read.
    """
    from scorer.learn import experience_files
    from scorer.learn.join.joining import join

    if file is not None:
        if logs:
            raise typer.BadParameter("--log: the experience is already read from a file; give one of the two")
        return experience_files.read(file)
    if cache is not None and checkpoint is None:
        raise typer.BadParameter("--cache requires --checkpoint: it stores the rows of one checkpoint")
    now = time.time_ns() // 1_000_000
    source = log_source(logs, settings.source)
    found = join(source, shelf, settings.join, as_of_ms=now, checkpoint=checkpoint, cache=cache)
    return found.experience
