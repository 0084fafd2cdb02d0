"""When a freeze's windows begin: five crontab fields in a time zone.

Summer time: a time of the day that does not exist begins as long after midnight as it would have (02:30 is
03:30 that day); one that comes twice begins twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from heapq import heappop, heappush
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from scorer.release.errors import InvalidError

if TYPE_CHECKING:
    from apscheduler.triggers.cron import CronTrigger

_FORM = 'write minute, hour, day, month, day of the week: "0 17 * * fri"'
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_STEP = timedelta(microseconds=1)
_CHANGE = timedelta(hours=3)
"""More than clocks are ever changed by."""


@lru_cache(maxsize=1024)
def trigger(cron: str, timezone: str) -> CronTrigger:
    """The times of the wall clock, as if it were UTC's.

    Raises:
        InvalidError: it is no crontab line, it never comes, or there is no such time zone.
    """
    from apscheduler.triggers.cron import CronTrigger

    fields = cron.split()
    if len(fields) != 5:
        raise InvalidError(f'"{cron}" has {len(fields)} fields, a freeze has five; {_FORM}')
    if fields[2] != "*" and fields[4] != "*":
        raise InvalidError(f'"{cron}" names days of the month and of the week; add two freezes, one for each')
    try:
        ZoneInfo(timezone)
    except (KeyError, OSError, ValueError):
        raise InvalidError(f'there is no time zone "{timezone}"; write "UTC" or "Europe/Berlin"') from None
    try:
        fields[4] = _days_of_week(fields[4])
        made = CronTrigger.from_crontab(" ".join(fields), timezone=UTC)
    except ValueError as error:
        raise InvalidError(f'"{cron}" is no time ({error}); {_FORM}') from None
    if made.get_next_fire_time(None, datetime(2026, 1, 1, tzinfo=UTC)) is None:
        raise InvalidError(f'"{cron}" never comes; name a day that there is')
    return made


def begins(cron: str, timezone: str, start: datetime) -> Iterator[datetime]:
    """Every time from `start` on, in UTC, in order.

    The library steps along the wall clock alone, as if it never changed; what its times are in the zone is
    told by the zone's own rules. (Let loose on a zone, it passes times over after the clock was changed.)
    """
    times, zone = trigger(cron, timezone), ZoneInfo(timezone)
    wall = start.astimezone(zone).replace(tzinfo=UTC) - _CHANGE
    waiting: list[datetime] = []
    told = start - _STEP
    while True:
        found = times.get_next_fire_time(None, wall)
        moments = [] if found is None else _in_zone(found.replace(tzinfo=None), zone)
        # What is still to come lies at most one change of the clock before this one.
        sure = moments[0] - _CHANGE if moments else None
        while waiting and (sure is None or waiting[0] <= sure):
            moment = heappop(waiting)
            if moment > told:
                told = moment
                yield moment
        if found is None:
            return
        for moment in moments:
            heappush(waiting, moment)
        wall = found + _STEP


def _in_zone(wall: datetime, zone: ZoneInfo) -> list[datetime]:
    """The one or two moments at which clocks show it; where none do, as long after midnight as it says."""
    first = wall.replace(tzinfo=zone).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) != wall:
        return [first]
    return sorted({first, wall.replace(tzinfo=zone, fold=1).astimezone(UTC)})


def latest(cron: str, timezone: str, at: datetime, length: timedelta) -> datetime | None:
    """The last time in `(at - length, at]`: whose window of `length` is open at `at`, and ends last."""
    reach = timedelta(minutes=1)
    while True:
        reach = min(reach, length)
        found = None
        for moment in begins(cron, timezone, at - reach + _STEP):
            if moment > at:
                break
            found = moment
        if found is not None or reach == length:
            return found
        reach *= 4


def _days_of_week(field: str) -> str:
    """Days by name: crontab counts from Sunday (0 and 7), the library from Monday."""
    if field == "*" or field.startswith("*/"):
        every = int(field[2:] or 0) if field != "*" else 1
        if every < 1:
            raise ValueError(f'"{field}"')
        return "*" if every == 1 else ",".join(_DAYS[0::every])
    named: list[str] = []
    for part in field.lower().split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        low, high = _day(first), _day(last) if dash else _day(first)
        if dash and last == "7":
            high = 7
        if high < low:
            high += 7
        every = int(step) if step else 1
        if every < 1:
            raise ValueError(f'"{part}"')
        named += [_DAYS[day % 7] for day in range(low, high + 1, every)]
    return ",".join(dict.fromkeys(named))


def _day(text: str) -> int:
    if text in _DAYS:
        return _DAYS.index(text)
    if text.isascii() and text.isdigit() and int(text) <= 7:
        return int(text) % 7
    raise ValueError(f'"{text}" is no day of the week')
