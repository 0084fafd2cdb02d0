"""Retention of a log: removing old segments, and marking records as shipped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of `prune`.

    Attributes:
        removed: File names of the segments that were removed (or would be, in a dry run), oldest first.
        removed_bytes: Size of these segments in bytes.
        segments: Number of segments that are left.
        bytes: Size of the segments that are left, in bytes.
        first_sequence: The lowest sequence that is left; None if nothing was removed.
        shipped: Records below this sequence are marked as shipped or exported.
        blocked_bytes: Size of the segments that exceed a limit and could not be removed, in bytes.
        blocked: Why they could not be removed: "not_shipped", "being_read" or "damaged".
    """

    removed: tuple[str, ...]
    removed_bytes: int
    segments: int
    bytes: int
    first_sequence: int | None
    shipped: int
    blocked_bytes: int
    blocked: str | None


def prune(
    directory: Path,
    *,
    max_age: timedelta | None = None,
    max_bytes: int | None = None,
    unshipped: bool = False,
    dry_run: bool = False,
) -> Pruned:
    """Remove the oldest segments that exceed a limit. A server may write to the log at the same time.

    The segment that is being written, the newest finished segment and segments that are being read are never
    removed.

    Args:
        directory: The log's directory.
        max_age: Remove segments whose newest record is older than this.
        max_bytes: Remove the oldest segments while the total size is larger than this.
        unshipped: Whether records that are not marked as shipped may be removed.
        dry_run: Only report what would be removed.

    Raises:
        LogError: The directory is not a log, or a file cannot be removed.
    """
    from scorer import bridge

    seconds = None if max_age is None else max_age.total_seconds()
    done = json.loads(bridge.prune_log(directory, seconds, max_bytes, unshipped, dry_run))
    return Pruned(**{**done, "removed": tuple(done["removed"])})


def mark_shipped(directory: Path, sequence: int) -> int:
    """Mark all records below a sequence as shipped, so that retention may remove them.

    Args:
        directory: The log's directory.
        sequence: Records below it are stored elsewhere.

    Returns:
        The present mark, which is higher than `sequence` if an earlier call set it higher.

    Raises:
        LogError: The mark cannot be written.
    """
    from scorer import bridge

    return bridge.mark_shipped(directory, sequence)
