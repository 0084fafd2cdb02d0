"""A reference for `scorer.cron` that checks crontab lines at every minute of the wall clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

MINUTE = timedelta(minutes=1)
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe")


def naive_begins(line: str, zone: str, start: datetime, end: datetime) -> set[datetime]:
    """Return every wall-clock minute that matches the line, in UTC, by a check of each minute."""
    minute, hour, day, month, weekday = line.split()
    tz = ZoneInfo(zone)
    begins = set()
    at = (start - timedelta(hours=15)).replace(tzinfo=None)
    minutes = {value for value in range(60) if _fits(minute, value)}
    hours = {value for value in range(24) if _fits(hour, value)}
    while at < (end + timedelta(hours=15)).replace(tzinfo=None):
        if (
            at.minute in minutes
            and at.hour in hours
            and _fits(day, at.day)
            and _fits(month, at.month)
            and _fits_day(weekday, at)
        ):
            first = at.replace(tzinfo=tz).astimezone(UTC)
            second = at.replace(tzinfo=tz, fold=1).astimezone(UTC)
            exists = first.astimezone(tz).replace(tzinfo=None) == at
            begins |= {first, second} if exists else {first}
        at += MINUTE
    return {moment for moment in begins if start <= moment < end}


def _fits(field: str, value: int) -> bool:
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        if span == "*":
            if value % int(step or 1) == 0:
                return True
        elif int(low) <= value <= int(high or low) and (value - int(low)) % int(step or 1) == 0:
            return True
    return False


def _fits_day(field: str, at: datetime) -> bool:
    """Return whether a crontab's weekday field matches. 0 and 7 are Sunday."""
    if field == "*":
        return True
    today = (at.weekday() + 1) % 7
    for part in field.split(","):
        low, dash, high = part.partition("-")
        first = DAYS.index(low) if low in DAYS else int(low) % 7
        if not dash:
            if today == first:
                return True
            continue
        last = DAYS.index(high) if high in DAYS else int(high)
        last += 7 if last < first else 0
        if any(day % 7 == today for day in range(first, last + 1)):
            return True
    return False


minutes_field = st.sampled_from(["0", "30", "15,45", "*/20", "5-10"])
hours_field = st.sampled_from(["*", "1", "3", "0,12", "22-23", "*/6", "4"])
weekday_field = st.sampled_from(["*", "0", "7", "mon", "1-5", "fri-sun", "6-1", "sat,sun", "5-7"])
