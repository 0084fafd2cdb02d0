"""Which moments are frozen: a deny wins; where there is an allow, only its windows are open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from scorer import cron
from scorer.release.model import Freeze, FreezeWindow

DENY, ALLOW = "deny", "allow"
_FOREVER = timedelta(days=3660)


def concerns(freeze: Freeze, checkpoint: str) -> bool:
    """Whether one of its patterns fits."""
    return any(fnmatchcase(checkpoint, pattern) for pattern in freeze.checkpoints)


def forbids(freezes: Sequence[Freeze], checkpoint: str, at: datetime) -> FreezeWindow | None:
    """The window that forbids a change at `at`, the one that ends last; None: allowed.

    Where an allow freeze forbids, the window is the gap that ends when the next allowed one begins.
    """
    mine = [freeze for freeze in freezes if concerns(freeze, checkpoint)]
    found: FreezeWindow | None = None
    for freeze in mine:
        if freeze.kind == DENY and (window := _open(freeze, at)) and (not found or window.end > found.end):
            found = window
    if found:
        return found
    allows = [freeze for freeze in mine if freeze.kind == ALLOW]
    if not allows or any(_open(freeze, at) for freeze in allows):
        return None
    nexts = [(next(cron.occurrences(f.cron, f.timezone, at), at + _FOREVER), f) for f in allows]
    end, freeze = min(nexts, key=lambda found: found[0])
    return FreezeWindow(freeze, at, end)


def windows(freeze: Freeze, start: datetime, end: datetime, *, limit: int = 2000) -> Iterator[FreezeWindow]:
    """Its windows that touch `[start, end)`; those that overlap are one. At most `limit` begin in it."""
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
