"""What of a log is kept: removing old segments, and marking what is elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a round of retention did.

    Attributes:
        removed: File names of the segments that were removed (or would be), oldest first.
        removed_bytes: Their size.
        segments: Segments that are left.
        bytes: Their size.
        first_sequence: The lowest sequence that is left; None if nothing was removed.
        shipped: Records below this sequence are marked as shipped or exported.
        blocked_bytes: Bytes beyond a limit that stay.
        blocked: Why they stay: "not_shipped", "being_read" or "damaged".
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
    """Remove the oldest segments beyond a limit; a server may be writing the log meanwhile.

    The segment being written, the newest finished one and those that are being read always stay.

    Args:
        directory: The log.
        max_age: Segments whose newest record is older are removed.
        max_bytes: The oldest segments are removed while all together are larger.
        unshipped: Whether records that are not marked as shipped may be removed.
        dry_run: Only report what would be removed.

    Raises:
        LogError: The directory is no log, or a file cannot be removed.
    """
    from scorer import bridge

    seconds = None if max_age is None else max_age.total_seconds()
    done = json.loads(bridge.prune_log(directory, seconds, max_bytes, unshipped, dry_run))
    return Pruned(**{**done, "removed": tuple(done["removed"])})


def mark_shipped(directory: Path, sequence: int) -> int:
    """Mark that all records below a sequence are elsewhere, and return the mark, which never moves back.

    Raises:
        LogError: The mark cannot be written.
    """
    from scorer import bridge

    return bridge.mark_shipped(directory, sequence)
