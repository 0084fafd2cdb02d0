"""Where something fits between what is booked. One pass over bookings and freeze windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

_ALWAYS = 400
"""So many freezes, each beginning before the one before has ended: nothing is ever open (a daily "
"one: a year)."""
Span = tuple[datetime, datetime]
"""From, until: the end is free again."""


def next_free(
    busy: Mapping[int, Sequence[Span]],
    length: timedelta,
    after: datetime,
    until: datetime,
    frozen_until: Callable[[datetime], datetime | None],
) -> tuple[int, datetime] | None:
    """The earliest (slot, start) from `after` on that is free for `length` and does not start in a freeze.

    Args:
        busy: by slot, what is taken, by start, without overlaps.
        length: how long.
        after: not before.
        until: nothing that starts later.
        frozen_until: when a moment's freeze is over; None: it is not frozen.
    """
    places = dict.fromkeys(busy, 0)
    # The earliest fit of each slot: looked for again only once it lies behind, so no span is passed twice.
    starts = dict.fromkeys(busy, datetime.min.replace(tzinfo=UTC))
    at, frozen = after, 0
    while at <= until:
        thaw = frozen_until(at)
        if thaw is not None:
            at, frozen = thaw, frozen + 1
            if frozen > _ALWAYS:
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
    """The earliest start from `at` on in one slot, and the first span behind it."""
    start = at
    while place < len(spans) and spans[place][0] < start + length:
        start = max(start, spans[place][1])
        place += 1
    return start, place
