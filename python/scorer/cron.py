"""Crontab lines in a time zone: the one meaning of a line for freezes and for the jobs of the learning loop.

A line has five fields (minute, hour, day of the month, month, day of the week). Days of the week count from
Sunday (0 and 7). A local time that the change to summer time skips occurs as long after midnight as on any
other day (02:30 becomes 03:30); a local time that comes twice occurs twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from heapq import heappop, heappush
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_FORM = 'write minute, hour, day of the month, month, day of the week: "0 17 * * fri"'
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_STEP = timedelta(microseconds=1)
_LARGEST_OFFSET_CHANGE = timedelta(hours=3)


def occurrences(line: str, timezone: str, start: datetime) -> Iterator[datetime]:
    """Every time of a line from `start` on.

    The local clock is stepped through as if its offset were constant, and each local time is then placed by
    the rules of the zone; the library's own handling of a change of offset would occur once where the clock
    shows a time twice, and a freeze must cover both.

    Args:
        line: five crontab fields.
        timezone: an IANA name, such as `Europe/Berlin`.
        start: aware; the first time is not before it.

    Returns:
        Times in UTC, strictly increasing, without end.

    Raises:
        ValueError: the line or the time zone is not valid.
    """
    fields, zone = _fields(line), _zone(timezone)
    local = start.astimezone(zone).replace(tzinfo=UTC) - _LARGEST_OFFSET_CHANGE
    return _in_order(CronSim(fields, local - timedelta(seconds=1)), zone, start)


def latest(line: str, timezone: str, at: datetime, length: timedelta) -> datetime | None:
    """The last time of a line in `(at - length, at]`, in UTC; None if there is none.

    Raises:
        ValueError: the line or the time zone is not valid.
    """
    reach = timedelta(minutes=1)
    while True:
        reach = min(reach, length)
        last = None
        for moment in occurrences(line, timezone, at - reach + _STEP):
            if moment > at:
                break
            last = moment
        if last is not None or reach == length:
            return last
        reach *= 4


def check(line: str, timezone: str = "UTC") -> None:
    """Checks a line and a time zone.

    Raises:
        ValueError: one of them is not valid; the text says what to write.
    """
    _fields(line)
    _zone(timezone)


def _in_order(local_times: CronSim, zone: ZoneInfo, start: datetime) -> Iterator[datetime]:
    pending: list[datetime] = []
    last = start - _STEP
    for local in local_times:
        moments = _in_zone(local.replace(tzinfo=None), zone)
        # A later local time is at most one change of the offset earlier than this one.
        settled = moments[0] - _LARGEST_OFFSET_CHANGE
        while pending and pending[0] <= settled:
            moment = heappop(pending)
            if moment > last:
                last = moment
                yield moment
        for moment in moments:
            heappush(pending, moment)


def _in_zone(local: datetime, zone: ZoneInfo) -> list[datetime]:
    """The one or two moments at which clocks show a local time; one that is skipped keeps its offset."""
    first = local.replace(tzinfo=zone).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) != local:
        return [first]
    return sorted({first, local.replace(tzinfo=zone, fold=1).astimezone(UTC)})


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise ValueError(f'there is no time zone "{name}"; write "UTC" or "Europe/Berlin"') from None


@lru_cache(maxsize=1024)
def _fields(line: str) -> str:
    """The line in the library's terms."""
    fields = line.split()
    if len(fields) != 5:
        raise ValueError(f'"{line}" has {len(fields)} fields instead of five; {_FORM}')
    if fields[2] != "*" and fields[4] != "*":
        raise ValueError(
            f'"{line}" names days of the month and of the week, which cron variants combine in different '
            "ways; write two lines, or a day such as mon#1 (the first Monday of the month)"
        )
    fields[2] = fields[2].lower().replace("last", "l")
    fields[4] = ",".join(_weekdays(part) for part in fields[4].lower().split(","))
    checked = " ".join(fields)
    try:
        CronSim(checked, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise ValueError(
            f'"{line}" is not a crontab line or never occurs ({str(error).lower()}); {_FORM}'
        ) from None
    return checked


def _weekdays(part: str) -> str:
    """A span over the end of the week, such as fri-mon, as a list: the library refuses such spans."""
    span, _, step = part.partition("/")
    first, _, last = span.partition("-")
    low, high = _day(first), _day(last)
    every = int(step) if step.isdecimal() else 0 if step else 1
    if low is None or high is None or low <= high or every < 1:
        return part
    return ",".join(str(day % 7) for day in range(low, high + 8, every))


def _day(name: str) -> int | None:
    if name in _DAYS:
        return _DAYS.index(name)
    return int(name) if len(name) == 1 and name in "01234567" else None
