"""Evaluation of freezes at a time. `deny` takes precedence; with an `allow`, only its windows are open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from scorer import cron
from scorer.release.model import Freeze, FreezeWindow

DENY, ALLOW = "deny", "allow"
_FOREVER = timedelta(days=3660)


def concerns(freeze: Freeze, checkpoint: str) -> bool:
    """Whether one of the freeze's patterns matches a checkpoint."""
    return any(fnmatchcase(checkpoint, pattern) for pattern in freeze.checkpoints)


def forbids(freezes: Sequence[Freeze], checkpoint: str, at: datetime) -> FreezeWindow | None:
    """Return the window that forbids a change at a time, and ends last; None: the change is allowed.

    If an `allow` freeze forbids the change, the returned window ends when the next allowed one starts.
    """
    mine = [freeze for freeze in freezes if concerns(freeze, checkpoint)]
    denied: FreezeWindow | None = None
    for freeze in mine:
        if freeze.kind == DENY and (window := _open(freeze, at)) and (not denied or window.end > denied.end):
            denied = window
    if denied:
        return denied
    allows = [freeze for freeze in mine if freeze.kind == ALLOW]
    if not allows or any(_open(freeze, at) for freeze in allows):
        return None
    nexts = [(next(cron.occurrences(f.cron, f.timezone, at), at + _FOREVER), f) for f in allows]
    end, freeze = min(nexts, key=lambda pair: pair[0])
    return FreezeWindow(freeze, at, end)


def windows(freeze: Freeze, start: datetime, end: datetime, *, limit: int = 2000) -> Iterator[FreezeWindow]:
    """Yield the freeze's windows that touch `[start, end)`, with overlapping windows merged.

    Args:
        freeze: The freeze.
        start: Start of the time span.
        end: End of the time span.
        limit: Limit on the number of windows before they are merged.
    """
    length = timedelta(minutes=freeze.minutes)
    held: FreezeWindow | None = None
    for count, begin in enumerate(cron.occurrences(freeze.cron, freeze.timezone, start - length)):
        if begin >= end or count >= limit:
            break
        if begin + length <= start:
            continue
        if held and begin <= held.end:
            held = FreezeWindow(freeze, held.start, begin + length)
            continue
        if held:
            yield held
        held = FreezeWindow(freeze, begin, begin + length)
    if held:
        yield held


def _open(freeze: Freeze, at: datetime) -> FreezeWindow | None:
    length = timedelta(minutes=freeze.minutes)
    begin = cron.latest(freeze.cron, freeze.timezone, at, length)
    return None if begin is None else FreezeWindow(freeze, begin, begin + length)
