"""Search for the next free slot, in one pass over bookings and freeze windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

_MAX_WINDOWS = 400
"""Limit on adjoining freeze windows, after which the search ends. Daily windows reach it after a year."""
Span = tuple[datetime, datetime]
"""Start (inclusive) and end (exclusive)."""


def next_free(
    busy: Mapping[int, Sequence[Span]],
    length: timedelta,
    after: datetime,
    until: datetime,
    frozen_until: Callable[[datetime], datetime | None],
) -> tuple[int, datetime] | None:
    """Return the earliest slot and start that are free for a duration and do not start in a freeze.

    Args:
        busy: Booked spans by slot, ordered by start and without overlaps.
        length: Duration of the booking.
        after: Earliest start.
        until: Latest start.
        frozen_until: Returns the end of the freeze at a time; None: the time is not frozen.

    Returns:
        The slot and its start; None if no slot is free.
    """
    places = dict.fromkeys(busy, 0)
    # The earliest fit of each slot. It is computed again only after `at` has passed it, so that each span is
    # read once.
    starts = dict.fromkeys(busy, datetime.min.replace(tzinfo=UTC))
    at, frozen = after, 0
    while at <= until:
        thaw = frozen_until(at)
        if thaw is not None:
            at, frozen = thaw, frozen + 1
            if frozen > _MAX_WINDOWS:
                return None
            continue
        frozen = 0
        for slot, spans in busy.items():
            if starts[slot] < at:
                starts[slot], places[slot] = _fits(spans, places[slot], at, length)
        start, slot = min((start, slot) for slot, start in starts.items())
        if start == at:
            return slot, start
        at = start
    return None


def _fits(spans: Sequence[Span], place: int, at: datetime, length: timedelta) -> tuple[datetime, int]:
    """Return the earliest start from `at` on in one slot, and the index of the first span after it."""
    start = at
    while place < len(spans) and spans[place][0] < start + length:
        start = max(start, spans[place][1])
        place += 1
    return start, place
